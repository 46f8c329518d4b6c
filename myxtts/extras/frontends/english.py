"""`english`: American or British phonemes without espeak-ng, by the package hibari-tts.

Its chain is a port of misaki's: a lexicon of two sizes, parts of speech for words that are read in
two ways, rules for endings, and a network for other words. It reads numbers, too.
"""

import string
from collections.abc import Iterable
from functools import cache

from myxtts.base.errors import DataError, check_packages
from myxtts.extras.frontends.characters import readable
from myxtts.text.readers import Reader, combined

READ = frozenset(string.ascii_letters + string.digits + "$£€%&@+=/#°")
# Brackets are misaki's notation for phonemes. Dashes are pauses; quotes and brackets are none.
WRITTEN = {ord("["): "(", ord("]"): ")", ord("—"): ", "}
UNSPOKEN = dict.fromkeys(map(ord, '“”"()[]'))


class English(Reader):
    """Phonemes of misaki: a letter for each diphthong (A is eɪ), stress before its vowel."""

    package = "hibari-tts"
    licence = "Apache-2.0 (misaki)"
    languages = ("en", "en-us", "en-gb")

    def __init__(self, options: str = ""):
        super().__init__(options)
        check_packages("--text-frontend english", "hibari")

    def read(self, text: str, language: str) -> Iterable[str]:
        text = readable(text.translate(WRITTEN), READ.__contains__, language)
        phonemes = _chain(language == "en-gb")(text)
        if "❓" in phonemes:
            raise DataError(f"the front end english cannot read a word of {text[:60]!r}.")
        return combined(" ".join(phonemes.translate(UNSPOKEN).split()))


@cache
def _chain(british: bool):
    from hibari.g2p import G2P

    return G2P(unk="❓", british=british)
