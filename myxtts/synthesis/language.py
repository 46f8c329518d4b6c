"""Choice of the language of a text among those of a run. Does not import TensorFlow."""

from collections.abc import Sequence

from myxtts.errors import DataError
from myxtts.text.languages import canonical_code


def choose_language(language: str | None, trained: Sequence[str]) -> str:
    """Return the requested language, or the only trained one if none is requested.

    Raises:
        DataError: the run was not trained on the language, or none was requested and the run has
            several.
    """
    if language is None and len(trained) == 1:
        return trained[0]
    code = canonical_code(language or "")
    same = [name for name in trained if canonical_code(name) == code]
    trained_as = language if language in trained else next(iter(same), None)
    if trained_as is None:
        requested = "no language" if language is None else f"language '{language}'"
        raise DataError(
            f"{requested} was given, but this run was trained on {', '.join(trained)}. "
            "Give one of these with --language."
        )
    return trained_as
