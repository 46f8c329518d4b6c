"""Words of a text and the symbols that they became, for what has a time for each symbol."""

import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from myxtts.base.names import canonical_code
from myxtts.text.frontend import TextFrontend
from myxtts.text.readers import PUNCTUATION, STRESS_AND_LENGTH

SEPARATORS = PUNCTUATION + " "


class Phoneme(NamedTuple):
    """A phoneme with its stress before it and other marks behind it, or a letter.

    Its symbols are those from `first` to before `end`.
    """

    text: str
    first: int
    end: int


class Word(NamedTuple):
    """A word with its phonemes, at least one."""

    text: str
    phonemes: list[Phoneme]


def phonemes_of(symbols: Sequence[str]) -> list[Phoneme]:
    """Return the phonemes of symbols, without separators; of characters, each as its own."""
    phonemes: list[Phoneme] = []
    first = 0
    for place, symbol in enumerate(symbols):
        if symbol in SEPARATORS:
            first = place + 1
        elif symbol not in STRESS_AND_LENGTH[:2]:
            is_mark = unicodedata.category(symbol[0]) == "Lm"
            if is_mark and phonemes and phonemes[-1].end == place:
                first = phonemes.pop().first
            phonemes.append(Phoneme("".join(symbols[first : place + 1]), first, place + 1))
            first = place + 1
    return phonemes


def words_of_symbols(symbols: Sequence[str]) -> list[Word]:
    """Return the words of symbols, between separators, each named by its symbols."""
    words: list[Word] = []
    for phoneme in phonemes_of(symbols):
        if words and words[-1].phonemes[-1].end == phoneme.first:
            name, phonemes = words.pop()
            words.append(Word(name + phoneme.text, [*phonemes, phoneme]))
        else:
            words.append(Word(phoneme.text, [phoneme]))
    return words


# Each word is read alone, and the readings are joined. In a sentence words sound otherwise, share
# their spaces, and numbers are read with their neighbours. So the fewest edits between the readings
# and the symbols of the whole text tell where the beginning of each word went. The phonemes up to
# the next beginning are the word's; a word that keeps none is joined to its neighbour.
def words_of_text(
    text: str, language: str, frontend: TextFrontend, symbols: Sequence[str]
) -> list[Word]:
    """Return the words of a text as they are written, with the phonemes that each became.

    `symbols` may lack those that a voice does not have.
    """
    from rapidfuzz.distance import Levenshtein  # takes a while, and few ask for times

    names = frontend.reader.words(text, canonical_code(language))
    alone: list[str] = []
    starts = []
    for name in names:
        reading = frontend.symbols(name, language)
        if alone and reading:
            alone.append(" ")
        starts.append(len(alone))
        alone += reading
    phonemes = phonemes_of(symbols)
    ends = [phoneme.end for phoneme in phonemes]
    edits = Levenshtein.opcodes(alone, symbols)
    places = [0, *(bisect_right(ends, _moved(start, edits)) for start in starts[1:])]
    words: list[Word] = []
    before = ""
    for name, (first, end) in zip(names, pairwise([*places, len(phonemes)]), strict=True):
        if first < end:
            words.append(Word(before + name, phonemes[first:end]))
            before = ""
        elif words:
            words[-1] = Word(f"{words[-1].text} {name}", words[-1].phonemes)
        else:
            before += f"{name} "
    return words


def _moved(place: int, edits) -> int:
    """Return where the symbol at a place is after edits."""
    for edit in edits:
        if place < edit.src_end:
            return edit.dest_start + min(place - edit.src_start, edit.dest_end - edit.dest_start)
    return edits[-1].dest_end if edits else 0
