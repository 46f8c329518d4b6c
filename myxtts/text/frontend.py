"""Text front end: from a text to the symbols that a model reads."""

import re
import unicodedata
from typing import Literal

from myxtts.text import espeak

# Kept as symbols, from which the model learns pauses.
PUNCTUATION = ",.;:!?…"
STRESS_AND_LENGTH = "ˈˌːˑ"

MAX_MARKS = 30  # combining marks in a row
# Shorter texts are sorted quickly, whatever they have.
MAX_UNSAFE_CHARACTERS = 1_000

Frontend = Literal["phonemes", "characters"]

# Zero width, but they change Persian and Indic words.
_JOINERS = "\u200c\u200d"
# Marks of Arabic, Urdu, Chinese, Japanese, Hindi, Armenian and Georgian have Latin equivalents.
_SPELLINGS = str.maketrans(
    {
        **dict.fromkeys("“”„‟«»〝〞", '"'),
        **dict.fromkeys("‘’‚‛‹›ʼ", "'"),
        **dict.fromkeys("‐‑‒–−﹣－", "-"),
        **dict.fromkeys("―⸺", "—"),
        **dict.fromkeys("،、，", ", "),
        **dict.fromkeys("؛；", "; "),
        **dict.fromkeys("؟？՞", "? "),
        **dict.fromkeys("！", "! "),
        **dict.fromkeys("：׃", ": "),
        **dict.fromkeys("۔。।॥։", ". "),
        "჻": ". ",
    }
)
# A mark inside a number, a time or an abbreviation ends no clause.
_CLAUSE_END = re.compile(r"((?:[;!?…]|,(?!\d)|[.:](?!\w))+)")


def normalise_text(text: str) -> str:
    """Normalise a text: NFC, single spaces, one kind of each quote, dash and mark, and no control
    or format characters but for joiners.
    """
    text = unicodedata.normalize("NFC", " ".join(_stream_safe(text).split())).translate(_SPELLINGS)
    text = "".join(
        c for c in text if unicodedata.category(c) not in ("Cc", "Cf", "Cs") or c in _JOINERS
    )
    # Where characters between spaces were removed: the next lines are quadratic in a run.
    text = " ".join(text.split())
    text = re.sub(r"\.{3,}", "…", text)
    text = re.sub(r"\s*—\s*|\s+-+\s+", " — ", text)
    return " ".join(re.sub(rf"\s+([{PUNCTUATION}])(?!\w)", r"\1", text).split())


def _stream_safe(text: str) -> str:
    """Drop marks behind the 30th of a run of combining marks, the limit of UAX 15, section 13."""
    # No script needs more. Marks are sorted in NFC: a run of 100,000 takes minutes.
    if len(text) <= MAX_UNSAFE_CHARACTERS:
        return text
    kept = []
    run = 0
    for character in text:
        run = run + 1 if unicodedata.combining(character) else 0
        if run <= MAX_MARKS:
            kept.append(character)
    return "".join(kept)


def symbols_of(text: str, language: str, frontend: Frontend) -> list[str]:
    """Return the symbols of any text; [] if nothing in it can be spoken.

    Raises DataError if espeak-ng does not know the language.

    Args:
        language: an espeak-ng language code; unused with "characters".
        frontend: "phonemes" returns IPA characters with their combining marks, stress and length
            marks, spaces between words, and PUNCTUATION. "characters" returns the code points of
            the text in lower case.
    """
    text = normalise_text(text)
    if frontend == "characters":
        return list(text.lower()) if any(c.isalnum() for c in text) else []
    symbols: list[str] = []
    for character in unicodedata.normalize("NFC", _phonemes(text, language)):
        if symbols and unicodedata.combining(character):
            symbols[-1] += character
        else:
            symbols.append(character)
    silent = PUNCTUATION + STRESS_AND_LENGTH + " "
    return symbols if any(symbol not in silent for symbol in symbols) else []


def _phonemes(text: str, language: str) -> str:
    """Return the IPA of `text` with its PUNCTUATION."""
    parts = _CLAUSE_END.split(text.replace('"', "").replace(" —", ","))
    ipa = ""
    for clause, mark in zip(parts[0::2], [*parts[1::2], ""], strict=True):
        clause_ipa = espeak.shared().phonemes(clause, language)
        if clause_ipa and ipa:
            ipa += " "
        ipa += clause_ipa + mark
    return ipa
