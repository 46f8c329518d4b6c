"""`piper-plus`: phonemes without espeak-ng, by the package piper-plus-g2p.

Japanese by OpenJTalk, with its accents; Chinese by pypinyin, with tones; Korean by g2pk2; English
by CMUdict; Spanish, French, Portuguese and Swedish by rules.
"""

import re
import string
from collections.abc import Iterable
from functools import cache, partial

from fontTools.unicodedata import script as script_of

from myxtts.base.errors import ConfigError, DataError, check_packages
from myxtts.extras.frontends.characters import readable
from myxtts.text.readers import PUNCTUATION, Reader, combined

# A symbol has one letter. Those of other tokens are its letters: tɕ is t and ɕ.
SYMBOLS = {f"tone{tone}": mark for tone, mark in enumerate("¹²³⁴⁵", 1)}
SYMBOLS |= {"y_vowel": "y", "N_n": "n", "N_m": "m", "N_ng": "ŋ", "N_uvular": "ɴ", "cl": "ʔ"}
SYMBOLS |= {"_": ",", "#": " ", "[": "↑", "]": "↓"}
SCRIPTS = {"ja": ("Hira", "Kana", "Hani"), "zh": ("Hani",), "ko": ("Hang",)}
LATIN, DIGITS = string.ascii_letters, string.digits
# What each reads besides its scripts. Others are not read, or spelt.
CHARACTERS = {
    "ja": LATIN + DIGITS + "ー・〇々&%@",
    "zh": "",
    "ko": DIGITS,
    "en": LATIN + DIGITS,
    "es": LATIN + "áéíóúüñÁÉÍÓÚÜÑ¿¡",
    "fr": LATIN + "àâæçéèêëîïôœùûüÀÂÆÇÉÈÊËÎÏÔŒÙÛÜ",
    "pt": LATIN + "áâãàçéêíóôõúüÁÂÃÀÇÉÊÍÓÔÕÚÜ",
    "sv": LATIN + "åäöÅÄÖ",
}
_MARKS = re.compile(rf"([{PUNCTUATION}]+)")


class PiperPlus(Reader):
    """Phonemes of piper-plus-g2p; ↑ and ↓ are the accents of Japanese."""

    package = "piper-plus-g2p"
    licence = "MIT"
    languages = tuple(CHARACTERS)

    def __init__(self, options: str = ""):
        super().__init__(options)
        check_packages("--text-frontend piper-plus", "piper_plus_g2p")

    # OpenJTalk knows one pause, and other languages some marks: clauses are read one by one.
    def read(self, text: str, language: str) -> Iterable[str]:
        text = readable(text, partial(_is_read, language), language)
        phonemizer, symbols = _phonemizer(language), ""
        for clause, marks in zip(*[iter([*_MARKS.split(text), ""])] * 2, strict=True):
            if clause := clause.strip(" '\"-—()¿¡"):
                try:
                    tokens = phonemizer.phonemize(clause)
                except LookupError as error:  # its message is a page
                    raise ConfigError(
                        f"--text-frontend piper-plus reads {language!r} with tables of NLTK, which"
                        " are missing. Run: python -m nltk.downloader cmudict"
                        " averaged_perceptron_tagger_eng"
                    ) from error
                spoken = "".join(SYMBOLS.get(token, token) for token in tokens)
                if unread := [c for c in spoken if script_of(c) in SCRIPTS.get(language, ())]:
                    raise DataError(f"piper-plus does not know {' '.join(unread)} of {clause!r}.")
                symbols += f" {spoken.strip(', ')}" if symbols else spoken.strip(", ")
            symbols += marks
        return combined(symbols)

    def words(self, text: str, language: str) -> list[str]:
        """Return Chinese characters with the marks behind them, else what is between spaces."""
        if language == "zh":
            return re.findall(r"\w\W*", text)
        return super().words(text, language)


def _is_read(language: str, character: str) -> bool:
    scripts = SCRIPTS.get(language, ())
    return character in CHARACTERS[language] or script_of(character) in scripts


@cache
def _phonemizer(language: str):
    from piper_plus_g2p import get_phonemizer

    try:
        return get_phonemizer(language)
    except (ImportError, ValueError) as error:  # a language without its packages is unknown
        raise ConfigError(
            f"--text-frontend piper-plus reads {language!r} with further packages: {error}. Run:"
            f" pip install 'piper-plus-g2p[{language}]'"
        ) from error
