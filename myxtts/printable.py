"""Texts of unknown origin on a terminal."""

import unicodedata

_BIDIRECTIONAL_CONTROLS = (
    "LRE",
    "RLE",
    "PDF",
    "LRO",
    "RLO",
    "LRI",
    "RLI",
    "FSI",
    "PDI",
)  # classes of Unicode


def printable(text: str) -> str:
    r"""Return a text for a terminal, with \x1b and the like for what a terminal would not show but
    act on.

    Names of files and texts of a corpus are quoted in messages, and whoever wrote them may have put
    control characters in them, or characters that reverse the order of the text around them. Bytes
    of names that are not UTF-8 are lone surrogates, which cannot be written.
    """
    return "".join(
        ascii(character)[1:-1] if _is_control(character) else character for character in text
    )


def _is_control(character: str) -> bool:
    is_control = (
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") and character not in "\n\t"
    )
    return is_control or unicodedata.bidirectional(character) in _BIDIRECTIONAL_CONTROLS
