"""Characters that a front end would leave out or misread in silence."""

import unicodedata
from collections.abc import Callable

from myxtts.base.errors import DataError
from myxtts.text.readers import PUNCTUATION

UNSPOKEN = frozenset(" '\"-—()" + PUNCTUATION)


def readable(text: str, is_read: Callable[[str], bool], language: str) -> str:
    """Return a text with letters that are not read without their accents (idé, in Swedish: ide).

    `is_read` takes a character. Raises DataError for others that are not read, unless they are
    UNSPOKEN.
    """
    characters, unread = [], []
    for character in text:
        plain = unicodedata.normalize("NFD", character)[0]
        if character in UNSPOKEN or is_read(character):
            characters.append(character)
        elif is_read(plain) and plain.isalpha():
            characters.append(plain)
        else:
            unread.append(character)
    if unread:
        raise DataError(
            f"the front end does not read {' '.join(dict.fromkeys(unread))} in {text[:60]!r} as"
            f" {language!r}, and would leave it out. Write it as it is spoken, or give phonemes"
            " between [[ and ]]."
        )
    return "".join(characters)
