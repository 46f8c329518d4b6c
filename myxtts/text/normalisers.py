"""Numbers, dates, money and abbreviations as words, by the library that reads a language best.

`benchmarks/text_normalisers.py` compared them. The symbols of a run depend on these libraries, so a
table of them has a name and fixed versions: another table gets another name. readings.yaml corrects
what they misread, for earlier runs too.
"""

import importlib
import logging
import re
import threading
from collections.abc import Callable, Iterable
from functools import cache
from importlib import metadata
from typing import Literal, NamedTuple

from myxtts.base.errors import ConfigError, DataError
from myxtts.base.files import table_beside
from myxtts.base.names import base_language
from myxtts.text import espeak
from myxtts.text.sentences import clauses_of

Normaliser = Literal["none", "words-1"]

# Damga takes 0.5 s for 1,000 characters of numbers, and 50 times as long for 10,000.
MAX_CHARACTERS = 400

_STRESSED = re.compile(r"(?<!\d)\+([аеёиоуыэюя])", re.IGNORECASE)

_UNREAD = re.compile(
    # Signs of other blocks and private characters, too, which many languages leave out.
    r"\[[^\]]*\]|\S*(?:[\d$¢-¥₠-⃀%‰°§#&@+*=<>~^|©®±×÷←-➿⬀-⯿\ue000-\uf8ff]"
    r"|[аеиоуыэюя]\u0301)\S*",
    re.IGNORECASE,
)

log = logging.getLogger(__name__)
_lock = threading.Lock()


class Library(NamedTuple):
    """A package that normalises texts."""

    package: str
    version: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


LIBRARIES = {
    **dict.fromkeys(("en", "de", "es", "fr"), Library("damga", "1.0.5")),
    "ru": Library("ru-normalizr", "1.3.0"),
    "fa": Library("num2words", "0.5.14"),
}


# Corrections before the library, the library clause by clause, corrections behind it. A language
# without a library passes unchanged.
def words_of(text: str, language: str) -> str:
    """Return a sentence with its numbers, dates, money and abbreviations as words.

    Raises ConfigError if the library is missing, and DataError if it fails on the sentence.
    """
    code = base_language(language)
    if code not in LIBRARIES:
        return text
    clauses = clauses_of(_read(text, language, "before"), MAX_CHARACTERS)
    # The libraries do not say that they may be called from several threads.
    with _lock:
        normalise = _loaded(code)
        try:
            return _read(" ".join(map(normalise, clauses)), language, "behind")
        # Whatever a library raises on a text that it was not made for.
        except Exception as error:
            raise DataError(
                f"{LIBRARIES[code].package} cannot read the text {text[:60]!r}:"
                f" {type(error).__name__} {error}. Write it as it is spoken."
            ) from error


def description(language: str) -> str:
    """Return the name and version of the library of a language; espeak-ng alone without one."""
    library = LIBRARIES.get(base_language(language))
    if library is None:
        return "espeak-ng alone"
    return f"{library.package} {library.version}"


def installed_versions(languages: Iterable[str]) -> dict[str, str]:
    """Return the versions of the libraries that read some languages, by package."""
    codes = {base_language(language) for language in languages}
    packages = sorted({LIBRARIES[code].package for code in codes & LIBRARIES.keys()})
    return {package: metadata.version(package) for package in packages}


def unread(text: str) -> list[str]:
    """Return what espeak-ng reads in its own way in a normalised text without phonemes: words with
    digits or signs, words in brackets ([laughs]), and Russian ones with a stress mark, which it
    ignores.
    """
    return _UNREAD.findall(text)


def _read(text: str, language: str, stage: str) -> str:
    """Return a text with what readings.yaml has for it "before" or "behind" the library."""
    for pattern, reading in _readings(language, stage):
        text = pattern.sub(reading, text)
    return text


@cache
def _readings(language: str, stage: str) -> list[tuple[re.Pattern, str]]:
    table = table_beside(__file__, "readings.yaml")
    # The dot of an abbreviation stays where it ends the sentence.
    dot = r"(?:\.(?=\s?[\w,])|(?=\.$))"
    patterns = []
    # The code of the voice comes first, since it names the country: en is read as en-us.
    for name in (espeak.voice_of(language), base_language(language)):
        for key, reading in table.get(name, {}).get(stage, {}).items():
            pattern = re.compile(rf"\b{key}{dot}" if key.isalpha() else key)
            patterns.append((pattern, reading))
    return patterns


def _function(language: str) -> Callable[[str], str]:
    """Import the library of a language, and return its function from a text to a text."""
    if language == "ru":
        normalise = importlib.import_module("ru_normalizr").normalize
        # It writes the accent of a stressed vowel as a plus, which espeak-ng reads.
        return lambda text: _STRESSED.sub("\\1\u0301", normalise(text))
    if language == "fa":
        return importlib.import_module("myxtts.text.persian").words_of
    return importlib.import_module("damga").TextNormalizer(lang=language).normalize


@cache
def _loaded(language: str) -> Callable[[str], str]:
    library = LIBRARIES[language]
    try:
        normalise = _function(language)
        installed = metadata.version(library.package)
    except (ImportError, metadata.PackageNotFoundError) as error:
        raise ConfigError(
            f"the text normaliser words-1 was requested, which reads '{language}' with"
            f" {library.requirement}, but that cannot be imported: {error}. Run: pip install"
            f" {library.requirement}; or start a run with --text-normaliser none."
        ) from error
    if installed != library.version:
        log.warning(
            "text normaliser: words-1 is defined with %s, but version %s is installed, which may"
            " read numbers otherwise. Run: pip install %s",
            library.requirement,
            installed,
            library.requirement,
        )
    return normalise
