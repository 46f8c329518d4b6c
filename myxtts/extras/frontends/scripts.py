"""Letters that a front end would leave out in silence."""

import unicodedata
from collections.abc import Sequence

from myxtts.base.errors import DataError
from myxtts.text.languages import letters_by_script, names_of


def check_letters(text: str, scripts: Sequence[str], language: str, digits: bool = True) -> None:
    """Raise DataError if a text has letters of other scripts (ISO 15924), or digits without
    `digits`.
    """
    foreign = [script for script in letters_by_script([text]) if script not in scripts]
    fault = ""
    if foreign:
        fault = f"{names_of(foreign)} letters"
    elif not digits and any(unicodedata.category(c)[0] == "N" for c in text):
        fault = "digits, which it would leave out"
    if fault:
        raise DataError(
            f"the front end reads {language!r} in {names_of(scripts)} letters, but"
            f" {text[:60]!r} has {fault}. Write it as it is spoken, or give phonemes between [["
            " and ]]."
        )
