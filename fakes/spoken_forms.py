"""The sentences of tests/spoken_forms, and whether a normalised text is read as they say."""

import csv
import itertools
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from myxtts.text.frontend import symbols_of

TABLES = Path(__file__).resolve().parents[1] / "tests/spoken_forms"
LANGUAGES = ("en", "de", "es", "fr", "ru", "fa")
SILENT = "ˈˌ ,.;:!?…"


def sentences(language: str, unseen: bool = False) -> list[dict[str, str]]:
    """Return the rows of a language: `text`, `spoken`, and without `unseen` also `class`."""
    path = TABLES / ("unseen.tsv" if unseen else f"{language}.tsv")
    with open(path, encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row for row in rows if row.get("language", language) == language]


def readings(spoken: str) -> Iterator[str]:
    """Yield the sentences that a cell of the column `spoken` allows."""
    parts = [part.split("|") for part in re.split(r"[\[\]]", spoken)]
    for words in itertools.product(*parts):
        yield "".join(words)


def is_right(text: str, spoken: str, language: str) -> bool:
    """Return whether letters or phonemes of a text are those of an expected reading.

    Case, spaces, punctuation, the dots of ё and stress do not count.
    """
    expected = [*readings(spoken)]
    if _letters(text) in map(_letters, expected):
        return True
    sound = _phonemes(text, language)
    return any(sound == _phonemes(reading, language) for reading in expected)


def _letters(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).casefold().replace("ё", "е")
    return "".join(filter(str.isalnum, text))


def _phonemes(text: str, language: str) -> str:
    return "".join(s for s in symbols_of(text, language, "phonemes") if s not in SILENT)
