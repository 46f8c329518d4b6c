"""Esperanto: each letter has one sound, and the last but one vowel of a word has the stress."""

import re

from myxtts.base.errors import DataError
from myxtts.text.readers import PUNCTUATION, Reader

LETTERS = dict(zip("abdefghijklmnoprstuvzŭ", "abdefɡhijklmnoprstuvzw", strict=True))
LETTERS |= {"c": "ts", "ĉ": "tʃ", "ĝ": "dʒ", "ĥ": "x", "ĵ": "ʒ", "ŝ": "ʃ"}
VOWELS = "aeiou"


class Esperanto(Reader):
    package = "myxtts-esperanto"
    licence = "CC0"
    languages = ("eo",)

    def read(self, text: str, language: str) -> list[str]:
        symbols: list[str] = []
        for word, marks in re.findall(rf"([^\s{PUNCTUATION}]*)([{PUNCTUATION}]*)", text.lower()):
            if unknown := set(word) - set(LETTERS) - set("'\"-—()"):
                raise DataError(
                    f"Esperanto has no {' '.join(sorted(unknown))}: {word!r} cannot be read."
                    " Write it as it is spoken."
                )
            letters = [letter for letter in word if letter in LETTERS]
            if symbols and letters:
                symbols.append(" ")
            vowels = [place for place, letter in enumerate(letters) if letter in VOWELS]
            stressed = vowels[max(len(vowels) - 2, 0) :][:1]
            for place, letter in enumerate(letters):
                if place in stressed:
                    symbols.append("ˈ")
                symbols += LETTERS[letter]
            symbols += marks
        return symbols
