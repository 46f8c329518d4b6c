"""Texts on a terminal, and a stdout that ends before the program. No TensorFlow."""

import os
import sys
import unicodedata
from contextlib import suppress
from io import UnsupportedOperation

# Characters of these classes of Unicode reverse the order of the text around them.
_BIDIRECTIONAL_CONTROLS = ["LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"]


def printable(text: str) -> str:
    r"""Return a text with \x1b and the like for characters that a terminal would act on.

    Names of files and texts of a corpus are quoted in messages. They may hold control characters,
    or bytes that are not UTF-8, which are lone surrogates and cannot be written.
    """
    characters = []
    for character in text:
        category = unicodedata.category(character)
        is_control = category in ("Cc", "Cs", "Zl", "Zp") and character not in "\n\t"
        if is_control or unicodedata.bidirectional(character) in _BIDIRECTIONAL_CONTROLS:
            character = ascii(character)[1:-1]
        characters.append(character)
    return "".join(characters)


def discard_stdout() -> None:
    """Redirect stdout to /dev/null; otherwise Python reports its error again when it exits."""
    with suppress(UnsupportedOperation):  # a stdout that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def detach_stdout(error: OSError, who: str) -> None:
    """Discard stdout after an error (a closed terminal, a full disk, `head`); warn on stderr that
    `who`, such as "The program goes on".
    """
    discard_stdout()
    # A closed terminal has taken stderr with it.
    with suppress(OSError):
        print(f"warning: stdout ends here: {error.strerror}. {who}.", file=sys.stderr)
