"""`arabic`: short vowels by the package text2tashkeel, then phonemes of espeak-ng."""

import re
from functools import cache

from myxtts.base.errors import DataError, check_packages
from myxtts.text.readers import Phonemes, Reader


class Arabic(Phonemes):
    """Phonemes of a text that gets its vowels; words that are written with some keep theirs."""

    package = "text2tashkeel"
    licence = "Apache-2.0 (text2tashkeel), GPL-3.0 (espeak-ng)"
    languages = ("ar",)
    check_language = Reader.check_language

    def __init__(self, options: str = ""):
        super().__init__(options)
        check_packages("--text-frontend arabic", "text2tashkeel")

    def symbols(self, text: str, language: str) -> list[str]:
        self.check_language(language)
        written, made = text.split(), _vowels()(text).split()
        if len(written) != len(made):
            raise DataError(f"text2tashkeel has other words for {text!r}: {' '.join(made)!r}.")
        words = map(_with_vowels, written, made)
        return super().symbols(" ".join(words), language)


def _with_vowels(written: str, made: str) -> str:
    return written if re.search("[\u064b-\u0650]", written) else made


@cache
def _vowels():
    from text2tashkeel import Diacritizer

    return Diacritizer().diacritize
