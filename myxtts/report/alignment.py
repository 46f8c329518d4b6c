"""Whether a voice learns to align texts with recordings, from what its steps report. No TensorFlow.

Without an alignment everything else still learns a little, and the loss falls: such a voice mumbles
in the rhythm of speech. The figures tell on their own.
"""

import logging
from collections import deque
from collections.abc import Mapping
from statistics import fmean
from typing import Any

EVIDENCE, SHORT = "alignment_evidence", "one_frame_tokens"

# From step 400 on; docs/decisions.md has the figures of corpora and of shuffled texts.
LEAST_EVIDENCE = 0.3
MOST_SHORT = 0.35
# Of a trained voice: clean corpora have 5 to 14 %, and one of 25 % repeated and left out words.
MANY_SHORT = 0.2
CHECKED_STEP = 400
# A report is of one batch, and varies by a quarter.
REPORTS = 5

log = logging.getLogger(__name__)


def alignment_grade(evidence: float, short: float) -> str:
    """Return bad, fair or good; fair is usual until step 1,000, and later loses words."""
    if evidence < LEAST_EVIDENCE or short > MOST_SHORT:
        return "bad"
    return "fair" if short > MANY_SHORT else "good"


def alignment_words(evidence: float, short: float) -> str:
    return f"{evidence:.0%} explained by the recordings, {short:.0%} of the tokens with one frame"


class AlignmentWarning:
    """Warns once, at a report from CHECKED_STEP on, if the alignment of a voice is none."""

    def __init__(self) -> None:
        self._figures: deque[tuple[float, float]] = deque(maxlen=REPORTS)
        self._has_warned = False

    def __call__(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Look at a report; those of other tasks have no alignment."""
        if EVIDENCE not in metrics:
            return
        self._figures.append((metrics[EVIDENCE], metrics[SHORT]))
        means = self._means()
        if step < CHECKED_STEP or self._has_warned or alignment_grade(*means) != "bad":
            return
        self._has_warned = True
        advice = "Compare texts, recordings and --language, and look at samples/; then start again."
        log.warning("no alignment   at step %d: %s. %s", step, alignment_words(*means), advice)

    def _means(self) -> list[float]:
        return [fmean(figures) for figures in zip(*self._figures, strict=True)]

    @property
    def line(self) -> str:
        """The alignment of the newest reports in words; empty without any."""
        if not self._figures:
            return ""
        means = self._means()
        return f"{alignment_words(*means)} ({alignment_grade(*means)})"
