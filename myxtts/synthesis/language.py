"""Choice of the language of a text among those of a run. Does not import TensorFlow."""

import json
from collections.abc import Sequence
from pathlib import Path

from myxtts.errors import CheckpointError, DataError
from myxtts.text.languages import canonical_code
from myxtts.training.missing_run import describe_missing


def choose_language(language: str | None, trained: Sequence[str]) -> str:
    """Return the requested language, or the only trained one if none is requested.

    Raises:
        DataError: the run was not trained on the language, or none was requested and the run has several.
    """
    if language is None and len(trained) == 1:
        return trained[0]
    code = canonical_code(language or "")
    trained_as = next((name for name in trained if name == language or canonical_code(name) == code), None)
    if trained_as is None:
        requested = "no language" if language is None else f"language '{language}'"
        raise DataError(
            f"{requested} was given, but this run was trained on {', '.join(trained)}. "
            "Give one of these with --language."
        )
    return trained_as


def trained_languages(run: Path) -> list[str]:
    """Read the languages of a run from its newest checkpoint, without reading the weights.

    Raises:
        CheckpointError: there is no checkpoint, or its state.json is damaged.
    """
    states = sorted(run.glob("checkpoints/step-*/state.json"), key=lambda path: (len(path.parent.name), path))
    if not states:
        raise CheckpointError(describe_missing(run))
    try:
        return list(json.loads(states[-1].read_text(encoding="utf-8"))["languages"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{states[-1]} cannot be read: {error!r}. Remove {states[-1].parent} to use the previous checkpoint."
        ) from error
