"""Word boundaries that the alignment search found against those that a synthesiser knows. Free of TensorFlow."""

import json
from pathlib import Path

import numpy as np

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.errors import DataError

WORD_GAP = " "
NEAR_MS = 20.0


def read_word_gaps(alignments: Path) -> dict[str, np.ndarray]:
    """Where the gaps between words begin and end, float64 [gaps, 2] in seconds, by utterance.

    Args:
        alignments: JSON lines of the form {"id": …, "phonemes": [[symbol, start_s, end_s], …]}; a gap is " ".

    Raises:
        DataError: a line is not of this form.
    """
    gaps = {}
    for number, line in enumerate(alignments.read_text(encoding="utf-8").splitlines(), 1):
        try:
            utterance = json.loads(line)
            found = [(float(start), float(end)) for symbol, start, end in utterance["phonemes"] if symbol == WORD_GAP]
            gaps[str(utterance["id"])] = np.array(found).reshape(-1, 2)
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f'{alignments}, line {number}: {{"id": …, "phonemes": [[symbol, start_s, end_s], …]}} is needed, but '
                f"it cannot be read so ({error!r}). Mend it, or take the file away to leave word boundaries out."
            ) from error
    return gaps


def found_word_gaps(tokens: np.ndarray, path: np.ndarray, word_gap: int) -> np.ndarray:
    """Where the tokens `word_gap` begin and end, float64 [gaps, 2] in seconds.

    Args:
        tokens: int [N].
        path: int [frames], ascending: the token of each frame; every token has one.
    """
    at = np.flatnonzero(tokens == word_gap)
    return np.searchsorted(path, np.stack([at, at + 1], axis=1)) * HOP_SAMPLES / SAMPLE_RATE_HZ


def boundary_figures(boundary: str, errors_ms: np.ndarray) -> dict[str, float]:
    """Signed and absolute median and share within 20 ms of errors, found minus true; at least one."""
    return {
        f"{boundary}_signed_median": float(np.median(errors_ms)),
        f"{boundary}_absolute_median": float(np.median(np.abs(errors_ms))),
        f"{boundary}_within_20_ms": float(np.mean(np.abs(errors_ms) <= NEAR_MS)),
    }
