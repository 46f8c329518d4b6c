"""Whether a voice learns to align texts with recordings, from what its steps report. No TensorFlow.

Without an alignment everything else still learns a little, and the loss falls: such a voice mumbles
in the rhythm of speech. The figures tell on their own.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

EVIDENCE, SHORT = "alignment_evidence", "one_frame_tokens"

# The limits hold from step 400 on. docs/decisions.md has the figures of corpora and of shuffled
# texts.
LEAST_EVIDENCE = 0.3
MOST_SHORT = 0.35
# Voices trained on clean corpora have 5 to 14 %. One with 25 % repeated and left out words.
MANY_SHORT = 0.2
CHECKED_STEP = 400
# The mean of so many reports is judged, since a report covers one batch and varies by a quarter.
REPORTS = 5

log = logging.getLogger(__name__)


def judge_alignment(evidence: Iterable[float], short: Iterable[float]) -> tuple[str, str]:
    """Return bad, fair or good, by the means of reports, and the means in words.

    Fair is usual until step 1,000; later words are left out and repeated.
    """
    explained, in_one = fmean(evidence), fmean(short)
    words = (
        f"{explained:.0%} explained by the recordings, {in_one:.0%} of the tokens with one frame"
    )
    if explained < LEAST_EVIDENCE or in_one > MOST_SHORT:
        return "bad", words
    if in_one > MANY_SHORT:
        return "fair", words
    return "good", words


class AlignmentWarning:
    """Warns once, at a report from CHECKED_STEP on, if a voice has no alignment."""

    def __init__(self) -> None:
        self._figures: deque[tuple[float, float]] = deque(maxlen=REPORTS)
        self._has_warned = False

    def __call__(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Look at a report; reports of other tasks have no alignment."""
        if EVIDENCE not in metrics:
            return
        self._figures.append((metrics[EVIDENCE], metrics[SHORT]))
        grade, words = self._judge()
        if step < CHECKED_STEP or self._has_warned or grade != "bad":
            return
        self._has_warned = True
        advice = "Compare texts, recordings and --language, and look at samples/; then start again."
        log.warning("no alignment   at step %d: %s. %s", step, words, advice)

    @property
    def line(self) -> str:
        """The alignment of the newest reports in words; empty without any."""
        if not self._figures:
            return ""
        grade, words = self._judge()
        return f"{words} ({grade})"

    def _judge(self) -> tuple[str, str]:
        evidence, short = zip(*self._figures, strict=True)
        return judge_alignment(evidence, short)
