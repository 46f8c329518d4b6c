"""Names of speakers and languages: one spelling of each."""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from functools import cache

_JOINERS = "\u200c\u200d"


@cache
def canonical_name(name: str) -> str:
    """Return a name in NFC, without outer spaces and without invisible characters.

    Joiners within a name stay, since Persian and Indic names have them.
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


def base_language(code: str) -> str:
    """Return the language of a code without its region: en_GB → en."""
    return canonical_code(code).split("-")[0]
