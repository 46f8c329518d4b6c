"""`piper-plus`: phonemes without espeak-ng, by the package piper-plus-g2p.

Japanese by OpenJTalk, with its accents; Chinese by pypinyin, with tones; Korean by g2pk2; English
by CMUdict; Spanish, French, Portuguese and Swedish by rules.
"""

import re
from collections.abc import Iterable
from functools import cache

from myxtts.base.errors import ConfigError, check_packages
from myxtts.base.names import canonical_code
from myxtts.extras.frontends.scripts import check_letters
from myxtts.text.readers import Reader, combined

# A symbol has one letter. Those of other tokens are its letters: tɕ is t and ɕ.
SYMBOLS = {f"tone{tone}": mark for tone, mark in enumerate("¹²³⁴⁵", 1)}
SYMBOLS |= {"y_vowel": "y", "N_n": "n", "N_m": "m", "N_ng": "ŋ", "N_uvular": "ɴ", "cl": "ʔ"}
SYMBOLS |= {"_": ",", "¿": "", "¡": "", "[": "↑", "]": "↓"}
LATIN = ("Latn",)
SCRIPTS = {"ja": ("Hira", "Kana", "Hani", "Latn"), "zh": ("Hani",), "ko": ("Hang",)}
# These leave out digits, or spell them.
WITHOUT_DIGITS = ("zh", "es", "fr", "pt", "sv")


class PiperPlus(Reader):
    """Phonemes of piper-plus-g2p; ↑ and ↓ are the accents of Japanese."""

    package = "piper-plus-g2p"
    licence = "MIT"
    languages = ("ja", "zh", "ko", "en", "es", "fr", "pt", "sv")

    def __init__(self, options: str = ""):
        super().__init__(options)
        check_packages("--text-frontend piper-plus", "piper_plus_g2p")

    def read(self, text: str, language: str) -> Iterable[str]:
        digits = language not in WITHOUT_DIGITS
        check_letters(text, SCRIPTS.get(language, LATIN), language, digits)
        try:
            tokens = _phonemizer(canonical_code(language)).phonemize(text)
        except (ImportError, ValueError) as error:  # a language without its packages is unknown
            raise ConfigError(
                f"--text-frontend piper-plus reads {language!r} with further packages: {error}."
                f" Run: pip install 'piper-plus-g2p[{language}]'"
            ) from error
        except LookupError as error:  # its message is a page
            raise ConfigError(
                f"--text-frontend piper-plus reads {language!r} with tables of NLTK, which are"
                " missing. Run: python -m nltk.downloader cmudict averaged_perceptron_tagger_eng"
            ) from error
        return combined("".join(SYMBOLS.get(token, token) for token in tokens))

    def words(self, text: str, language: str) -> list[str]:
        """Return Chinese characters with the marks behind them, else what is between spaces."""
        if canonical_code(language) == "zh":
            return re.findall(r"\w\W*", text)
        return super().words(text, language)


@cache
def _phonemizer(language: str):
    from piper_plus_g2p import get_phonemizer

    return get_phonemizer(language)
