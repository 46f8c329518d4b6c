"""The language of a text: one that the run was trained on. Free of TensorFlow."""

import json
from collections.abc import Sequence
from pathlib import Path

from myxtts.errors import CheckpointError, DataError


def choose_language(asked: str | None, trained: Sequence[str]) -> str:
    """The language that is asked for, or the only one that there is.

    Raises:
        DataError: the run does not know it, or has several and none was asked for.
    """
    if asked is None and len(trained) == 1:
        return trained[0]
    if asked not in trained:
        what = "no language" if asked is None else f"language '{asked}'"
        raise DataError(
            f"{what} was asked for, but this run was trained on {', '.join(trained)}. Give one of these by --language."
        )
    return asked


def trained_languages(run: Path) -> list[str]:
    """The languages of a run by its newest checkpoint, of which nothing else is looked at.

    Raises:
        CheckpointError: there is no checkpoint, or its state.json is damaged.
    """
    states = sorted(run.glob("checkpoints/step-*/state.json"), key=lambda path: (len(path.parent.name), path))
    if not states:
        raise CheckpointError(f"{run} was asked for, but has no checkpoint. Give the folder of a run, as runs/demo.")
    try:
        return list(json.loads(states[-1].read_text(encoding="utf-8"))["languages"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(
            f"{states[-1]} cannot be read: {error!r}. Remove {states[-1].parent}, so that the one before it speaks."
        ) from error
