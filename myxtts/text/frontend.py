"""Text front end: from a text to the symbols that a model reads, in four stages.

text → normalised (numbers as words, in each sentence) → lexicon (readings of words) → symbols.
Phonemes in the text, between [[ and ]], pass all stages as they are.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from myxtts.base.errors import DataError
from myxtts.base.files import decode_text, table_beside
from myxtts.text import espeak, readers
from myxtts.text.normalisers import Normaliser, words_of
from myxtts.text.readers import PUNCTUATION, STRESS_AND_LENGTH, Reader, reader_of
from myxtts.text.sentences import CAPITAL, PHONEMES, SMALL, sentences_of

_NO_STRESS = str.maketrans("", "", STRESS_AND_LENGTH)

# Zero width, but they change Persian and Indic words.
_JOINERS = "\u200c\u200d"
_CHARACTERS = table_beside(__file__, "characters.yaml")
SPELLINGS: dict[int, str] = {}
for _plain_mark, _marks in _CHARACTERS["spellings"].items():
    SPELLINGS |= dict.fromkeys(map(ord, _marks), _plain_mark)
# Compatibility characters that a later stage reads (№ µ ﷼ …), and Thai, Lao and Korean letters.
_KEPT = frozenset(_CHARACTERS["kept"]).union(map(chr, range(0x3131, 0x318F)))
# Pictures with what belongs to their sequences, and other variation selectors and keycaps.
_PICTURES = "\U0001f000-\U0001f0ff\U0001f170-\U0001faff☀-♨♰-❵➔-➿⬅-⭕⌚⌛⏩-⏺"
_SELECTORS = "\ufe00-\ufe0f\u20e3\U000e0100-\U000e01ef"
EMOJI = re.compile(
    rf"(?:[{_PICTURES}]|[^\d\s#*]\ufe0f)[{_PICTURES}{_SELECTORS}\u200d\U000e0020-\U000e007f]*"
    rf"|[{_SELECTORS}]"
)
# Letters of two scripts that look alike, and words that have both scripts: Ukrainian вiн.
_CYRILLIC, _LATIN = _CHARACTERS["cyrillic"], _CHARACTERS["latin"]
_IN_CYRILLIC, _IN_LATIN = str.maketrans(_LATIN, _CYRILLIC), str.maketrans(_CYRILLIC, _LATIN)
_MIXED = re.compile(rf"(?<!\w)(?=[^\W\d_]*[Ѐ-ӿ])(?=[^\W\d_]*[{_LATIN}])[^\W\d_]+")
_ABBREVIATION = re.compile("[A-Z]{2}")  # SMSка
_PHONEMES = re.compile(f"({PHONEMES})")
_WORD = re.compile(rf'[^\s{PUNCTUATION}()"—]+')
# A letter before a digit, a sign or a bracket (A4, A-4, A+), behind a digit (3a), in quotes, and a
# capital within a sentence (Vitamin A is), but not in a title (Once Upon A Time).
_LETTER = re.compile(
    rf"(?<!\w)(?:{CAPITAL}|a)-?(?=\d)|(?<!\w){CAPITAL}(?=[+*/&])|(?<=\d)[aA](?![\w.])"
    rf"""|(?:(?<=["'])(?=.["'])|(?<!\w)(?=.\)))(?:{CAPITAL}|{SMALL})"""
    rf"""|(?:(?<=[^\W\d_][ &/])|(?<=[.,;] )){CAPITAL}(?= [("]*(?!{CAPITAL})\w)"""
)


class Stages(NamedTuple):
    """A text after each stage of a front end.

    `left` is what is read in a way of its own, and emoji, which are left out; `named` are words
    whose letters are named instead of read.
    """

    text: str
    normalised: str
    lexicon: str
    symbols: list[str]
    left: list[str]
    named: list[str]


@dataclass(frozen=True)
class TextFrontend:
    """What makes symbols of texts, in training and in synthesis alike.

    Attributes:
        kind: the setting `text_frontend`; `reader_of` returns its reader.
        normaliser: reads numbers, dates, money and abbreviations, if the reader `normalises`;
            "none" leaves them to it.
        lexicon: what is read instead of a word: words, or phonemes between [[ and ]]. Its words are
            in lower case, in the spelling that `normalise_text` returns.
        version: of the reader's package in training; "" is unknown.
    """

    kind: str = "phonemes"
    normaliser: Normaliser = "none"
    lexicon: Mapping[str, str] = field(default_factory=dict)
    version: str = ""

    @classmethod
    def of_document(cls, fields: Mapping[str, Any]) -> "TextFrontend":
        """Return the front end of the fields in an exported voice, also of version 0.1."""
        fields = dict(fields)
        fields.setdefault("version", fields.pop("espeakng_loader", ""))
        return cls(**fields)

    @property
    def reader(self) -> Reader:
        """What reads words; raises ConfigError if it is not installed."""
        return reader_of(self.kind)

    def with_words(self, lexicon: Mapping[str, str]) -> "TextFrontend":
        """Return the front end with more words, which go before its own."""
        return replace(self, lexicon={**self.lexicon, **lexicon})

    def symbols(self, text: str, language: str) -> list[str]:
        """Return the symbols of a text or of a word in it, whether it can be read or not; see
        `stages`, and `symbols_of` for what they are.
        """
        _, replaced = self._words(text, language)
        return symbols_of(replaced, language, self.kind)

    def stages(self, text: str, language: str) -> Stages:
        """Return a text after each stage.

        Raises DataError if the reader does not know the language or cannot read the text, or the
        normaliser fails, and ConfigError if a package is missing.
        """
        normalised, replaced = self._words(text, language)
        symbols = symbols_of(replaced, language, self.kind)
        left = [emoji for emoji in EMOJI.findall(text) if unicodedata.category(emoji[0])[0] != "M"]
        own_way, named = self.reader.faults(replaced, language, "".join(symbols))
        left += own_way
        return Stages(text, normalised, replaced, symbols, left, named)

    def _words(self, text: str, language: str) -> tuple[str, str]:
        """Return a text as the normaliser and as the lexicon leave it."""
        normalised = replaced = normalise_text(text)
        reader = self.reader
        if reader.has_phonemes:
            readers.warn_of_other_version(reader.package, reader.version, self.version)
            if reader.normalises and self.normaliser != "none":
                sentences = sentences_of(normalised, language)
                normalised = " ".join(_in_words(sentence, language) for sentence in sentences)
            replaced = _around_phonemes(self._readings, normalised)
        return normalised, replaced

    def _readings(self, text: str) -> str:
        return _WORD.sub(lambda word: self.lexicon.get(word[0].lower(), word[0]), text)


def _in_words(sentence: str, language: str) -> str:
    # The library moves digits away from letters (A4), and turns others into words (a 5 A fuse).
    for change in (_with_letters, words_of, _with_letters):
        sentence = _around_phonemes(partial(change, language=language), sentence)
    return sentence


def _with_letters(text: str, language: str) -> str:
    """Return a text in which letters are phonemes where espeak-ng would read them as words."""

    def named(letter: re.Match) -> str:
        name = _letter_name(letter[0][0], language)
        if not name:
            return letter[0]
        return f" [[{name}]] "

    return " ".join(_LETTER.sub(named, text).split())


@cache
def _letter_name(letter: str, language: str) -> str:
    """Return the phonemes of a letter; "" if it sounds the same as a word before another word."""
    sound = partial(espeak.shared().phonemes, language=language)
    alone, both = sound(letter), sound(f"{letter} {letter}")
    is_same = both.translate(_NO_STRESS) == f"{alone} {alone}".translate(_NO_STRESS)
    return "" if is_same else alone


def _around_phonemes(change: Callable[[str], str], text: str) -> str:
    """Change the parts of a text that are no phonemes, without the spaces around them."""
    parts = _PHONEMES.split(text)
    for index, part in enumerate(parts):
        if index % 2 == 0 and (core := part.strip()):
            parts[index] = part.replace(core, change(core))
    return "".join(parts)


def read_lexicon(path: Path | None) -> dict[str, str]:
    """Return the reading of each word of a file, words in lower case; {} without a file.

    Each line has a word, a tab, and its reading: words, or phonemes (IPA) between [[ and ]]. Empty
    lines and lines that begin with # are skipped.

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
        is_word = _WORD.fullmatch(word) and "[[" not in word
        if not tab or not is_word or reading.count("[[") != reading.count("]]"):
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


def normalise_text(text: str) -> str:
    """Normalise a text: NFC, single spaces, one kind of each letter, digit, quote, dash and mark,
    no emoji, and no control or format characters but for joiners.
    """
    text = " ".join(text.split())
    if not text.isascii():
        text = _around_phonemes(_in_plain_characters, text)
    text = _MIXED.sub(_in_one_script, unicodedata.normalize("NFC", text).translate(SPELLINGS))
    text = "".join(
        c for c in text if unicodedata.category(c) not in ("Cc", "Cf", "Cs") or c in _JOINERS
    )
    # Where characters between spaces were removed: the next lines are quadratic in a run.
    text = " ".join(text.split())
    text = re.sub(r"\.{3,}", "…", text)
    text = re.sub(r"\s*—\s*|\s+-+\s+", " — ", text)
    return " ".join(re.sub(rf"\s+([{PUNCTUATION}])(?!\w)", r"\1", text).split())


def _in_plain_characters(text: str) -> str:
    """Return a text with full-width, styled and joined letters as plain ones, digits of any script
    as those of ASCII, and a space instead of each emoji.
    """
    text = "".join(map(_plain, EMOJI.sub(" ", text)))
    text = re.sub("μ(?=[a-zA-Z])", "µ", text)  # the sign of micrometres
    return re.sub("(?<=[0-9])[：，](?=[0-9])", lambda mark: {"：": ":", "，": ","}[mark[0]], text)


def _in_one_script(mixed: re.Match) -> str:
    """Return a word in one script if its letters of the other script look alike.

    The script of most letters is tried first.
    """
    word = mixed[0]
    tables = [_IN_CYRILLIC, _IN_LATIN]
    if sum(character < "Ѐ" for character in word) > len(word) / 2:
        tables.reverse()
    plain = [word.translate(table) for table in tables if not _ABBREVIATION.search(word)]
    return next((one for one in plain if not _MIXED.search(one)), word)


@cache
def _plain(character: str) -> str:
    if unicodedata.category(character) == "Nd":
        return str(unicodedata.decimal(character))
    form, *points = unicodedata.decomposition(character).split() or [""]
    is_read = (
        character in _KEPT
        or ord(character) in SPELLINGS
        # Spacing accents (´), and ², ™ and º, but not the letters of 5ᵗʰ.
        or points[:1] == ["0020"]
        or (form in ("<super>", "<sub>") and unicodedata.category(character) != "Lm")
    )
    if is_read or not form.startswith("<"):
        return character
    plain = "".join(_plain(chr(int(point, 16))) for point in points)
    return f" {plain}" if form == "<fraction>" else plain  # 1⅛


def symbols_of(text: str, language: str, frontend: str) -> list[str]:
    """Return the symbols of a text without normalising numbers; [] if nothing can be spoken.

    See `Reader` for what they are; what is between [[ and ]] is taken as it is. Raises DataError
    for an unknown language or what cannot be read.
    """
    return reader_of(frontend).symbols(normalise_text(text), language)
