"""Lexicon: a file of words and of what is read instead of them.

Each line has a word, a tab, and its reading: words, or phonemes (IPA) between [[ and ]]. Empty
lines and lines that begin with # are skipped.
"""

from pathlib import Path

from myxtts.errors import DataError
from myxtts.files import decode_text
from myxtts.text.frontend import normalise_text, only_word


def read_lexicon(path: Path | None) -> dict[str, str]:
    """Return the reading of each word of a file, words in lower case; {} without a file.

    Raises DataError if the file cannot be read, a line is not a word and its reading, or a word has
    two.
    """
    if path is None:
        return {}
    readings: dict[str, str] = {}
    content = decode_text(path.read_bytes, f"--lexicon {path}")
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        place = f"line {number} of --lexicon {path}"
        word, tab, reading = line.partition("\t")
        word, reading = normalise_text(word).lower(), normalise_text(reading)
        if not tab or not only_word(word) or reading.count("[[") != reading.count("]]"):
            raise DataError(
                f"{place} must be one word without punctuation, a tab, and its reading, but is"
                f" {line[:60]!r}. Phonemes stand between [[ and ]]: tomato, tab, [[təmˈɑːtoʊ]]."
            )
        if readings.setdefault(word, reading) != reading:
            raise DataError(
                f"{place} gives '{word}' the reading {reading[:40]!r}, but an earlier line has"
                f" {readings[word][:40]!r}. Remove one of them: case does not count."
            )
    return readings
