"""Words of sentences that are read: which of their sounds are whose, and samples of a corpus."""

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from myxtts.text.frontend import TextFrontend

Row = TypeVar("Row")


def aligned(
    options: Sequence[Collection[str]], heard: str, ends: Collection[int]
) -> tuple[float, list[tuple[int, int]]]:
    """Return the least edits between what was heard and readings of words, and their places.

    The nearest reading of each word counts. A word that ends elsewhere than in `ends` costs half an
    edit.
    """
    costs, starts = [0.0, *[99.0] * len(heard)], []
    for readings in options:
        found = [
            min(column) for column in zip(*(_edits(r, heard, costs) for r in readings), strict=True)
        ]
        costs = [cost + (0 if place in ends else 0.5) for place, (cost, _) in enumerate(found)]
        starts.append([start for _, start in found])
    end, places = len(heard), []
    for start in reversed(starts):
        places.append((start[end], end))
        end = start[end]
    return costs[-1], places[::-1]


def _edits(reading: str, heard: str, costs: list[float]) -> list[tuple[float, int]]:
    """Return the least edits up to each sound with a reading last, and where it starts."""
    row = [(cost, place) for place, cost in enumerate(costs)]
    for place in range(1, len(row)):
        row[place] = min(row[place], (row[place - 1][0] + 1, row[place - 1][1]))
    for letter in reading:
        above, row = row, [(row[0][0] + 1, row[0][1])]
        for place, sound in enumerate(heard, 1):
            (left, from_left), (over, from_over) = row[-1], above[place]
            corner, from_corner = above[place - 1]
            changed = corner if letter == sound else corner + 1
            row.append(min((left + 1, from_left), (over + 1, from_over), (changed, from_corner)))
    return row


def replaced(text: str, rules: Iterable[tuple[str, str]]) -> str:
    """Return a text after patterns were replaced, one after the other."""
    for pattern, replacement in rules:
        text = re.sub(pattern, replacement, text)
    return text


def rules_of(text: str) -> list[tuple[str, str]]:
    """Return the patterns and replacements of a text of rules like a=b between spaces."""
    return [rule.partition("=")[::2] for rule in text.split()]


def heard(text: str, language: str, lexicon: Mapping[str, str] | None = None) -> str:
    """Return what espeak-ng reads, with its spaces but without stress and pauses."""
    symbols = TextFrontend("phonemes", lexicon=dict(lexicon or {})).symbols(text, language)
    return re.sub(r"[^\w ]|[ˈˌ]", "", "".join(symbols))


def evenly(
    rows: Sequence[Row], text_of: Callable[[Row], str], count: int
) -> tuple[list[Row], list[Row]]:
    """Return evenly spaced rows of 4 to 30 words without digits and Latin letters, and others."""
    fit = [row for row in rows if 4 <= len(text_of(row).split()) <= 30]
    fit = [row for row in fit if not re.search("[0-9A-Za-z]", text_of(row))]
    count = min(count, len(fit))
    chosen = [fit[place * len(fit) // count] for place in range(count)]
    return chosen, [row for row in rows if row not in chosen]


def sample_arguments(description: str) -> argparse.Namespace:
    """Read the arguments of a program: the file of a corpus, and how many of its rows."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=60)
    return parser.parse_args()


def commonest(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the commonest form of each word."""
    counts: dict[str, Counter] = defaultdict(Counter)
    for word, form in pairs:
        counts[word][form] += 1
    return {word: forms.most_common(1)[0][0] for word, forms in counts.items()}
