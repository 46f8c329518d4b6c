"""Edit distance, and the character and word error rates computed from it."""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np


def edit_distance(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> int:
    """Return the edit distance of two sequences (Levenshtein 1966), row by row of the table."""
    # An insertion costs 1 per column, so the best cost by insertions within a row is a running
    # minimum of (cost - column).
    ids: dict[Hashable, int] = {}
    reference_ids, hypothesis_ids = (
        np.array([ids.setdefault(item, len(ids)) for item in items], dtype=int)
        for items in (reference, hypothesis)
    )
    column = np.arange(len(hypothesis_ids) + 1)
    row = column
    for deletions, item in enumerate(reference_ids, start=1):
        best = np.minimum(row[1:] + 1, row[:-1] + (hypothesis_ids != item))
        row = np.minimum.accumulate(np.concatenate([[deletions], best]) - column) + column
    return int(row[-1])


def error_rate(pairs: Iterable[tuple[Sequence[Hashable], Sequence[Hashable]]]) -> float:
    """Return the edits divided by the references' length, both summed over all pairs.

    Pairs of strings have a character error rate, pairs of lists of words a word error rate. Many
    insertions can raise it above 1. Raises ValueError if all references are empty.
    """
    pairs = list(pairs)
    length = sum(len(reference) for reference, _ in pairs)
    if not length:
        raise ValueError("an error rate needs a reference that is not empty")
    return sum(edit_distance(*pair) for pair in pairs) / length


def error_rates(references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, float]:
    """Return the character and the word error rate over all texts."""
    words = ([text.split() for text in texts] for texts in (references, hypotheses))
    return {
        "character_error_rate": error_rate(zip(references, hypotheses, strict=True)),
        "word_error_rate": error_rate(zip(*words, strict=True)),
    }
