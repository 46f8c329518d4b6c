"""How far one sequence is from another: the measure behind character and word error rates."""

from collections.abc import Hashable, Iterable, Sequence

import numpy as np


def edit_distance(reference: Sequence[Hashable], heard: Sequence[Hashable]) -> int:
    """Fewest substitutions, deletions and insertions that turn one into the other (Levenshtein 1966).

    Row by row of the table; within a row an insertion costs 1 for each column, so its best is a running minimum
    of (cost - column).
    """
    ids: dict[Hashable, int] = {}
    left, right = (
        np.array([ids.setdefault(item, len(ids)) for item in items], dtype=int) for items in (reference, heard)
    )
    column = np.arange(len(right) + 1)
    row = column
    for deleted, item in enumerate(left, start=1):
        best = np.minimum(row[1:] + 1, row[:-1] + (right != item))
        row = np.minimum.accumulate(np.concatenate([[deleted], best]) - column) + column
    return int(row[-1])


def error_rate(pairs: Iterable[tuple[Sequence[Hashable], Sequence[Hashable]]]) -> float:
    """Edits over the length of the references, both summed over all pairs (reference, heard).

    Pairs of strings give the character error rate, pairs of lists of words the word error rate. More than 1 where
    much is inserted.

    Raises:
        ValueError: all references are empty.
    """
    edits = length = 0
    for reference, heard in pairs:
        edits += edit_distance(reference, heard)
        length += len(reference)
    if not length:
        raise ValueError("an error rate needs a reference that is not empty")
    return edits / length


def error_rates(true: Sequence[str], heard: Sequence[str]) -> dict[str, float]:
    """Of characters and of words, over all texts."""
    words = [(one.split(), said.split()) for one, said in zip(true, heard, strict=True)]
    return {
        "character_error_rate": error_rate(zip(true, heard, strict=True)),
        "word_error_rate": error_rate(words),
    }
