"""Readers of texts: words in, symbols out. The setting `text_frontend` names one.

`phonemes` and `characters` are here; a package adds its own as an entry point of
`myxtts.frontends`: docs/guides/text.md shows one.
"""

import logging
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from importlib import metadata

from myxtts.base import plugins
from myxtts.base.errors import ConfigError, DataError
from myxtts.base.names import canonical_code
from myxtts.text import espeak
from myxtts.text.named import check_vowels, check_words
from myxtts.text.normalisers import unread
from myxtts.text.sentences import PHONEMES, SMALL

log = logging.getLogger(__name__)

# Marks that stay symbols: the model learns pauses from them.
PUNCTUATION = ",.;:!?…"
STRESS_AND_LENGTH = "ˈˌːˑ"
PLAYED = {"phonemes": "espeak", "characters": "text"}  # those of other players, as Piper says
_SILENT = frozenset(PUNCTUATION + STRESS_AND_LENGTH + " ")
_PHONEMES = re.compile(f"({PHONEMES})")
# A mark inside a number, a time, an abbreviation or an ordinal (den 3. maj) ends no clause.
_CLAUSE_END = re.compile(rf"((?:[;!?…]|,(?!\d)|[.:](?!\w|(?<=\d\.)\s{SMALL}))+)")
# Between [[ and ]] are phonemes with their spaces. A dash separates words without a space.
_WORD = re.compile(r"(?:\[\[.*?\]\]|[^\s—])+—?|—")


class Reader:
    """Reads texts of some languages; the base of those of other packages, which define `read`.

    Symbols between spaces are a word, and those of PUNCTUATION are pauses.

    Attributes:
        package: on PyPI, whose version decides the symbols; "" if nothing can change them.
        licence: of what reads, which model cards state.
        languages: their codes; empty if it reads any. `check_language` may know more.
        has_phonemes: whether words are read, and not spelt.
        normalises: whether numbers, dates and abbreviations become words before it reads.
    """

    package = ""
    licence = ""
    languages: tuple[str, ...] = ()
    has_phonemes = True
    normalises = False

    def __init__(self, options: str = ""):
        """Take what stands behind the name and a colon: "" alone, unless a reader takes options."""
        if options:
            raise ConfigError(
                f"--text-frontend has the options {options!r}, but this front end takes none. Give"
                " its name alone."
            )

    @cached_property
    def version(self) -> str:
        """The installed version of `package`; "" without one."""
        try:
            return metadata.version(self.package) if self.package else ""
        except metadata.PackageNotFoundError:
            return ""

    def check_language(self, language: str) -> None:
        """Raise DataError if it does not read a language."""
        if self.languages and canonical_code(language) not in self.languages:
            raise DataError(
                f"language {language!r} was requested, but the front end reads"
                f" {', '.join(self.languages)}. Give one of these, or another --text-frontend."
            )

    def read(self, text: str, language: str) -> Iterable[str]:
        """Return the symbols of a normalised text; raise DataError for what cannot be read."""
        raise NotImplementedError

    def faults(self, text: str, language: str, ipa: str) -> tuple[list[str], list[str]]:
        """Return what it reads in a way of its own, and words whose letters it names.

        Of a text and its symbols. Raises DataError if too much is wrong.
        """
        return [], []

    def words(self, text: str, language: str) -> list[str]:
        """Return the words of a text as they are written, which get times."""
        return _WORD.findall(text)

    def symbols(self, text: str, language: str) -> list[str]:
        """Return the symbols of a normalised text; [] if nothing can be spoken.

        What is between [[ and ]] is taken as it is. Raises DataError as `check_language` and
        `read`.
        """
        self.check_language(language)
        language = canonical_code(language)
        symbols: list[str] = []
        for number, part in enumerate(_PHONEMES.split(text)):
            if not (part := part.strip()):
                continue
            read = combined(part[2:-2].strip()) if number % 2 else [*self.read(part, language)]
            if long := [symbol for symbol in read if len(combined(symbol)) != 1]:
                raise DataError(
                    f"{self.package} made the symbol {long[0]!r} of {part[:60]!r}, but a symbol is"
                    " one letter with its marks. Update the package, or use another front end."
                )
            if symbols and read and read[0] not in PUNCTUATION:
                symbols.append(" ")
            symbols += read
        return spoken(symbols)


class Characters(Reader):
    """The code points of a text in lower case, in any language."""

    has_phonemes = False

    def symbols(self, text: str, language: str) -> list[str]:
        return list(text.lower()) if any(c.isalnum() for c in text) else []


class Phonemes(Reader):
    """IPA of espeak-ng with its marks, spaces between words, and PUNCTUATION."""

    package = "espeakng-loader"
    licence = "GPL-3.0 (espeak-ng)"
    normalises = True

    def check_language(self, language: str) -> None:
        espeak.shared().check_language(language)

    def symbols(self, text: str, language: str) -> list[str]:
        return spoken(combined(_phonemes(text, language)))

    def faults(self, text: str, language: str, ipa: str) -> tuple[list[str], list[str]]:
        words = _PHONEMES.sub(" ", text)
        named = check_words(words, language)
        if "[[" not in text:
            check_vowels(ipa, language)
        return unread(words), named


@cache
def reader_of(frontend: str) -> Reader:
    """Return the reader of a `text_frontend`: a name, or a name, a colon and options.

    Raises ConfigError for an unknown name, options that it does not take, or a missing package.
    """
    name, _, options = frontend.partition(":")
    try:
        make = plugins.load_one("frontends", name)
    except KeyError:
        raise ConfigError(
            f"the front end {name!r} is to read texts (--text-frontend), but installed are"
            f" {', '.join(plugins.names('frontends'))}. Install the package that brings it."
        ) from None
    try:
        reader = make(options)
    except TypeError as error:
        reader = error
    if not isinstance(reader, Reader):
        raise ConfigError(
            f"the front end {name!r} of another package makes {reader!r}, and no Reader of"
            " myxtts.text.readers. Update or remove the package."
        )
    return reader


@cache
def warn_of_other_version(package: str, installed: str, trained_with: str) -> None:
    """Log a warning, once, if symbols were made with another version; "" is an unknown one."""
    if trained_with and installed and installed != trained_with:
        line = (
            "phonemes: the run was trained with %s %s, but version %s is installed, which may read"
            " words otherwise. Run: pip install %s==%s"
        )
        log.warning(line, package, trained_with, installed, package, trained_with)


def combined(ipa: str) -> list[str]:
    """Return characters with their combining marks."""
    symbols: list[str] = []
    for character in unicodedata.normalize("NFC", ipa):
        if symbols and unicodedata.combining(character):
            symbols[-1] += character
        else:
            symbols.append(character)
    return symbols


def spoken(symbols: Sequence[str]) -> list[str]:
    """Return symbols; [] if all are silent."""
    return [] if _SILENT.issuperset(symbols) else [*symbols]


# Phonemes between [[ and ]] are taken as they are; the rest goes to espeak-ng clause by clause,
# since it drops the marks between them. A clause that is followed by given phonemes is read as if a
# word came next, so that an article does not become the name of its letter.
def _phonemes(text: str, language: str) -> str:
    """Return the IPA of `text` with its PUNCTUATION."""
    ipa = ""
    parts = _PHONEMES.split(text)
    for number, part in enumerate(parts, 1):
        if _PHONEMES.fullmatch(part):
            ipa = f"{ipa} {part[2:-2].strip()}".lstrip()
            continue
        clauses = _CLAUSE_END.split(part.replace('"', "").replace(" —", ","))
        for clause, mark in zip(clauses[0::2], [*clauses[1::2], ""], strict=True):
            clause_ipa = espeak.shared().phonemes(clause, language)
            if not mark and number < len(parts):
                clause_ipa = _before_a_word(clause, language) or clause_ipa
            if clause_ipa and ipa:
                ipa += " "
            ipa += clause_ipa + mark
    return ipa


def _before_a_word(clause: str, language: str) -> str:
    """Return the IPA of a clause before another word: "a" as an article, and not as a letter."""
    phonemes = espeak.shared().phonemes
    both, added = phonemes(f"{clause} ta", language), phonemes("ta", language)
    return both.removesuffix(added).strip() if both.endswith(f" {added}") else ""
