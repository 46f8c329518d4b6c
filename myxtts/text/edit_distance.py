"""Edit distance, and the character and word error rates computed from it."""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np


def edit_distance(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> int:
    """Return the edit distance of two sequences (Levenshtein 1966).

    The table is computed row by row. An insertion costs 1 per column, so the best cost by
    insertions within a row is a running minimum of (cost - column).
    """
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
    insertions can raise it above 1.

    Raises:
        ValueError: all references are empty.
    """
    edits = length = 0
    for reference, hypothesis in pairs:
        edits += edit_distance(reference, hypothesis)
        length += len(reference)
    if not length:
        raise ValueError("an error rate needs a reference that is not empty")
    return edits / length


def error_rates(references: Sequence[str], hypotheses: Sequence[str]) -> dict[str, float]:
    """Return the character and the word error rate over all texts."""
    pairs = list(zip(references, hypotheses, strict=True))
    return {
        "character_error_rate": error_rate(pairs),
        "word_error_rate": error_rate(
            (reference.split(), hypothesis.split()) for reference, hypothesis in pairs
        ),
    }
