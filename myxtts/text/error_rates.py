"""Character and word error rates."""

from collections.abc import Sequence

import jiwer


def error_rates(references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, float]:
    """Return the edits divided by the references' length, both summed over all texts, by `jiwer`.

    Many insertions can raise a rate above 1.
    """
    spoken, heard = list(references), list(hypotheses)
    return {
        "character_error_rate": jiwer.cer(spoken, heard),
        "word_error_rate": jiwer.wer(spoken, heard),
    }
