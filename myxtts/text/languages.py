"""Names, one spelling of each; languages: their codes, and their scripts."""

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import yaml
from fontTools.unicodedata import script as script_of
from fontTools.unicodedata import script_name

from myxtts.base.errors import DataError

# These tell no language: common to several scripts, inherited from the letter before, unassigned.
SHARED_SCRIPTS = ("Zyyy", "Zinh", "Zzzz")
_JOINERS = "\u200c\u200d"


@cache
def canonical_name(name: str) -> str:
    """Return a name in NFC, without outer spaces and without what is invisible, but for joiners
    within, which Persian and Indic names have.
    """
    composed = unicodedata.normalize("NFC", name)
    shown = (c for c in composed if c in _JOINERS or unicodedata.category(c) != "Cf")
    return "".join(shown).strip().strip(_JOINERS).strip()


def alike(names: Iterable[str]) -> list[list[str]]:
    """Return the names that differ in case, spaces, joiners or compatibility form only."""
    groups = defaultdict(list)
    for name in sorted(names):
        folded = unicodedata.normalize("NFKC", name).casefold()
        groups["".join(c for c in folded if not c.isspace() and c not in _JOINERS)].append(name)
    return [group for group in groups.values() if len(group) > 1]


def canonical_code(language: str) -> str:
    """Return a language code or locale in lower case with hyphens: en_GB → en-gb."""
    return canonical_name(language).lower().replace("_", "-")


def choose_language(language: str | None, trained: Sequence[str], flag: str = "--language") -> str:
    """Return the requested language, or the only trained one if none is requested.

    Raises DataError if the run was not trained on it, or none was requested of several.
    """
    if language is None and len(trained) == 1:
        return trained[0]
    code = canonical_code(language or "")
    same = [name for name in trained if canonical_code(name) == code]
    if same:
        return language if language in same else same[0]
    requested = "no language" if language is None else f"language '{language}'"
    raise DataError(
        f"{requested} was given, but this run was trained on {', '.join(trained)}. Give one of"
        f" these with {flag}."
    )


@cache
def scripts_of(language: str) -> frozenset[str]:
    """Return the scripts (ISO 15924) of a language; empty if unknown.

    A script within the code is added: fa is Arab, fa-latn is Arab and Latn.
    """
    base, *subtags = canonical_code(language).split("-")
    table = yaml.safe_load(Path(__file__).with_name("scripts.yaml").read_text("utf-8"))
    scripts = {script for script, languages in table.items() if base in languages.split()}
    if scripts:
        scripts.update(tag.capitalize() for tag in subtags if len(tag) == 4)
    return frozenset(scripts)


def letters_by_script(texts: Iterable[str]) -> Counter[str]:
    """Count the letters of texts by script (ISO 15924), without shared letters."""
    letters: Counter[str] = Counter()
    for text in texts:
        letters.update(text)
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        if unicodedata.category(letter).startswith("L") and script_of(letter) not in SHARED_SCRIPTS:
            scripts[script_of(letter)] += count
    return scripts


def names_of(scripts: Iterable[str]) -> str:
    """Return the English names of scripts: Latn and Cyrl → Cyrillic or Latin."""
    return " or ".join(sorted(script_name(script).replace("_", " ") for script in scripts))
