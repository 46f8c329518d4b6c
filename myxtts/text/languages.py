"""Languages: the one that is meant, and their scripts."""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from fontTools.unicodedata import script as script_of
from fontTools.unicodedata import script_name

from myxtts.base.errors import DataError
from myxtts.base.files import table_beside
from myxtts.base.names import canonical_code

# These tell no language: common to several scripts, inherited from the letter before, unassigned.
SHARED_SCRIPTS = ("Zyyy", "Zinh", "Zzzz")


def choose_language(language: str | None, trained: Sequence[str], flag: str = "--language") -> str:
    """Return the requested language, or the only trained one if none is requested.

    Raises DataError if the run was not trained on it, or none was requested of several.
    """
    if language is None and len(trained) == 1:
        return trained[0]
    code = canonical_code(language or "")
    same = [name for name in trained if canonical_code(name) == code]
    if language in same:
        return language
    if same:
        return same[0]
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
    table = table_beside(__file__, "scripts.yaml")
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
