"""From a text to the symbols that a model reads."""

import re
import unicodedata
from typing import Literal

from myxtts.text import espeak

PUNCTUATION = ",.;:!?…"  # symbols of their own, from which pauses are learnt
STRESS_AND_LENGTH = "ˈˌːˑ"

_JOINERS = "\u200c\u200d"  # zero width, yet they change Persian and Indic words
_SPELLINGS = str.maketrans(
    {
        **dict.fromkeys("“”„‟«»〝〞", '"'),
        **dict.fromkeys("‘’‚‛‹›ʼ", "'"),
        **dict.fromkeys("‐‑‒–−﹣－", "-"),
        **dict.fromkeys("―⸺", "—"),
        **dict.fromkeys("،、，", ", "),  # Arabic script; Chinese and Japanese
        **dict.fromkeys("؛；", "; "),
        **dict.fromkeys("؟？՞", "? "),
        **dict.fromkeys("！", "! "),
        **dict.fromkeys("：׃", ": "),
        **dict.fromkeys("۔。।॥։", ". "),  # Urdu; Chinese and Japanese; Hindi; Armenian
        "჻": ". ",  # Georgian paragraph separator
    }
)
# A mark ends a clause unless it stands inside a number, a time or an abbreviation.
_CLAUSE_END = re.compile(r"((?:[;!?…]|,(?!\d)|[.:](?!\w))+)")


def normalise_text(text: str) -> str:
    """`text` in Unicode NFC with one kind of each quote, dash and punctuation mark and single spaces.

    Control and invisible format characters go, except the joiners that spelling needs.
    """
    text = unicodedata.normalize("NFC", " ".join(text.split())).translate(_SPELLINGS)
    text = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf", "Cs") or c in _JOINERS)
    text = re.sub(r"\.{3,}", "…", text)
    text = re.sub(r"\s*—\s*|\s+-+\s+", " — ", text)
    return " ".join(re.sub(rf"\s+([{PUNCTUATION}])(?!\w)", r"\1", text).split())


def symbols_of(text: str, language: str, frontend: Literal["phonemes", "characters"]) -> list[str]:
    """Symbols of `text`; [] where nothing in it can be spoken.

    "phonemes": IPA characters with their combining marks, stress and length marks, spaces between words and
    PUNCTUATION. "characters": the code points of the normalised text in lower case; `language` plays no part.
    Raises DataError on a language that espeak-ng does not know.
    """
    text = normalise_text(text)
    if frontend == "characters":
        return list(text.lower()) if any(c.isalnum() for c in text) else []
    symbols = _with_marks(_phonemes(text, language))
    return symbols if any(_is_spoken(symbol) for symbol in symbols) else []


def _phonemes(text: str, language: str) -> str:
    """IPA of `text` with its PUNCTUATION."""
    pieces = _CLAUSE_END.split(text.replace('"', "").replace(" —", ","))
    ipa = ""
    for clause, mark in zip(pieces[0::2], [*pieces[1::2], ""], strict=True):
        spoken = espeak.phonemes(clause, language)
        ipa += (" " if spoken and ipa else "") + spoken + mark
    return ipa


def _with_marks(ipa: str) -> list[str]:
    """Characters of `ipa`, combining marks joined to the character before them."""
    symbols: list[str] = []
    for character in unicodedata.normalize("NFC", ipa):
        if symbols and unicodedata.combining(character):
            symbols[-1] += character
        else:
            symbols.append(character)
    return symbols


def _is_spoken(symbol: str) -> bool:
    return symbol not in PUNCTUATION + STRESS_AND_LENGTH + " "
