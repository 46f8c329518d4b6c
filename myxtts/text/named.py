"""Words whose letters espeak-ng names, or leaves out, instead of reading them.

It says "Chinese letter" for a kanji, and the code point of a letter without a name; one such letter
spells its whole word. A word of another language is marked: (en)wˈɪndəʊz(ru).
"""

import re
import unicodedata
from functools import cache, lru_cache
from itertools import takewhile

from fontTools.unicodedata import script as script_of

from myxtts.base.errors import DataError
from myxtts.base.names import canonical_code
from myxtts.text import espeak
from myxtts.text.languages import SHARED_SCRIPTS, scripts_of

MAX_NAMED = 0.5  # of the letters of a text
# Fraction of words without a vowel above which a text lacks its vowel signs. Arabic without them
# stays below 0.28; Hebrew without points has 0.5.
MAX_WITHOUT_VOWEL, FEWEST_WITHOUT_VOWEL = 0.33, 3

ADVICE = (
    "Write such words in letters that the language reads (kana for kanji), give their phonemes"
    " between [[ and ]], or train with --text-frontend characters."
)
# Their vowels become other sounds: th น้ำ and บ้าน (nam, ban) are "n s" and "b sn", my တစ် (tit) "ts".
_WITHOUT_RULES = ("th", "my")
_MARK, _NUMBER = "mark", "number"
_VOWELS = frozenset("aeiouyɑɐɒæəɘɛɜɞɤɨɪɔøœɶɵʉʊʌʏɯɚɝᵻᵿAEIOU\u0329\u030d")
# Scripts that need not write vowels. Elsewhere words without one are right: Croatian krv, prst.
_WITHOUT_VOWELS = ("Hebr", "Arab")
_UNSPOKEN = re.compile(r"\([a-z][a-z0-9-]*\)|[^\w\u0300-\u036f]|[ˈˌ]")
_SWITCHED = re.compile(r"\(([a-z0-9-]+)\)[^()]*(\([a-z0-9-]+\))?")
# Letters that espeak-ng has no name for. What it says of both alike is its word for "letter".
_NAMELESS = "\U00010280\ua6a0"


def check_words(text: str, language: str) -> list[str]:
    """Return the words of a text whose letters espeak-ng names.

    Raises DataError if these have most of its letters, or letters of the language's own script or
    a number are not read at all.
    """
    if canonical_code(language) in _WITHOUT_RULES and not text.isascii():
        raise DataError(f"espeak-ng has no usable rules for {language!r}. {ADVICE}")
    if all(_is_known(character, language) for character in set(text)):
        return []
    words = _words(text)
    named = [word for word in words if _fault(word, language)]
    lost = [word for word in named if _fault(word, language) == "lost"]
    if lost or sum(map(len, named)) > MAX_NAMED * sum(map(len, words)):
        raise DataError(
            f"espeak-ng cannot read {', '.join([*dict.fromkeys(lost or named)][:5])} as"
            f" {language!r}: it names letters, leaves them out or reads them as English. {ADVICE}"
        )
    return [*dict.fromkeys(named)]


def check_vowels(ipa: str, language: str) -> None:
    """Raise DataError if many words have no vowel, as in Hebrew without points."""
    if scripts_of(language).isdisjoint(_WITHOUT_VOWELS):
        return
    words = [_bare(word) for word in unicodedata.normalize("NFD", ipa).split()]
    words = [word for word in words if len(word) > 1]
    mute = [word for word in words if _VOWELS.isdisjoint(word)]
    if len(mute) >= FEWEST_WITHOUT_VOWEL and len(mute) > MAX_WITHOUT_VOWEL * len(words):
        raise DataError(
            f"espeak-ng reads {len(mute)} of {len(words)} words of {language!r} without a vowel,"
            f" such as {', '.join(mute[:3])}. Write the vowels as points. {ADVICE}"
        )


# espeak-ng reads the word, and marks of its answer tell how. It may switch to another language, say
# its word for "letter", or name the marks. A word is also named if its script belongs to none of
# the languages involved, or if only another language reads it as a word. It is lost if nothing of
# it is heard, or if its own language knows none of its letters.
@lru_cache(maxsize=100_000)
def _fault(word: str, language: str) -> str:
    """Return how a word is not read: "named", "lost", or "" if it is."""
    if all(_is_known(character, language) for character in word):
        return ""
    marked = espeak.shared().marked_phonemes(word, language)
    ipa, switch = _bare(marked), _SWITCHED.fullmatch(marked)
    by = language
    if switch:
        by = switch[1]
    script, is_number = script_of(word[0]), _kind(word[0]) == _NUMBER
    is_own = script in scripts_of(language)
    is_foreign = not is_number and script not in (scripts_of(by) or {script})
    is_named = (
        ("(" in marked and not switch)
        or _letter(language) in ipa
        or any(len(name) > 3 and name in ipa for name in _names_of_marks(word, language))
        or (is_number and switch)
        # â of Persian in Latin letters, which is read as English.
        or (is_own and switch and by == "en")
        # The name of a single letter is its reading: α.
        or (is_foreign and (switch or len(word) > 1))
        # Letter by letter, though its language reads the word: hello in Japanese.
        or (switch and not _is_read(word, language) and _is_read(word, by))
    )
    # A language without kanji reads no part of 水, but one without ogoneks reads the a of ą.
    letters = [one for one in unicodedata.normalize("NFD", word) if _kind(one) != _MARK]
    if not ipa or (is_named and is_own and not any(_is_known(one, language) for one in letters)):
        return "lost"
    return "named" if is_named else ""


def _names_of_marks(word: str, language: str) -> list[str]:
    marks = [one for one in word if _kind(one) == _MARK and not _is_known(one, language)]
    return [_bare(espeak.shared().phonemes(mark, language)) for mark in marks]


def _is_read(word: str, language: str) -> bool:
    """Return whether a language reads a word otherwise than letter by letter."""
    phonemes = espeak.shared().phonemes
    return _bare(phonemes(word, language)) != _bare(phonemes(" ".join(word), language))


def _words(text: str) -> list[str]:
    """Return the runs of letters of one script, each with its marks, and of digits; each ideograph
    alone.
    """
    words: list[str] = []
    before = ""
    for character in text:
        kind = _kind(character)
        if kind == _MARK:
            if before:
                words[-1] += character
            continue
        if kind and kind == before != "Hani":
            words[-1] += character
        elif kind:
            words.append(character)
        before = kind
    return words


@cache
def _kind(character: str) -> str:
    """Return the script of a letter; _NUMBER; _MARK, which belongs to the letter before; or ""."""
    category, script = unicodedata.category(character)[0], script_of(character)
    if category == "L" and script not in SHARED_SCRIPTS:
        return script
    if category in "LM" or character == "'":
        return _MARK
    return _NUMBER if category == "N" else ""


@lru_cache(maxsize=100_000)
def _is_known(character: str, language: str) -> bool:
    """Return whether espeak-ng knows a character, so that words of such characters are read."""
    kind = _kind(character)
    scripts = scripts_of(language)
    if not kind or (scripts and kind not in {*scripts, _NUMBER, _MARK}):
        return not kind
    read = espeak.shared().marked_phonemes
    marked = read(character, language)
    ipa = _bare(marked)
    if "(" in marked or _letter(language) in ipa:
        return False
    if kind != _MARK:
        return ipa != ""
    # Konkani names the vowel signs, also behind a consonant.
    name = unicodedata.name(character, "").partition(" ")[0]
    try:
        consonant = unicodedata.lookup(f"{name} LETTER KA")
    except KeyError:
        return True
    return len(ipa) < 4 or ipa not in _bare(read(consonant + character, language))


@cache
def _letter(language: str) -> str:
    """Return what a language says before a code point."""
    read = espeak.shared().marked_phonemes
    first, second = (_bare(read(one, language)) for one in _NAMELESS)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return "".join(one for one, _ in same) or "\0"


def _bare(ipa: str) -> str:
    """Return phonemes without stress, spaces, language switches and the flap of "letter"."""
    return _UNSPOKEN.sub("", ipa).replace("ɾ", "t")
