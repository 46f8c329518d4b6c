"""Which checkpoint of a run is used, and what it says of itself. No TensorFlow."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from myxtts.config.schema import Config
from myxtts.data.manifest import Vocabulary
from myxtts.errors import CheckpointError
from myxtts.text.symbols import SymbolTable
from myxtts.training.checkpoint_files import checkpoint_of, latest, list_checkpoints, read_best

INHERITED = {  # settings that say what weights and symbols mean
    "data": ("text_frontend",),
    "model": ("task", "model_size"),
    "asr": ("encoder", "subsampling"),
}

log = logging.getLogger(__name__)


def select_checkpoint(run: Path, name: str | None = None) -> Path:
    """A checkpoint of a run by its name, such as step-002000; by default the best, or the newest if none is best.

    Raises:
        CheckpointError: there is none, or none of this name.
    """
    newest = latest(run / "checkpoints")
    if newest is None:
        raise CheckpointError(
            f"{run} was asked for, but has no checkpoint. Give the folder of a run that has one, such as "
            "runs/demo; train_main.py makes it."
        )
    if name is not None:
        return _named(run, name)
    best = read_best(newest)
    if best is None:
        return newest
    checkpoint = checkpoint_of(newest.parent, best.step)
    if not checkpoint.exists():
        log.warning("the best checkpoint %s is gone: the newest one is used", checkpoint)
        return newest
    return checkpoint


def _named(run: Path, name: str) -> Path:
    found = list_checkpoints(run / "checkpoints")
    for checkpoint in found:
        if checkpoint.name == name:
            return checkpoint
    raise CheckpointError(
        f"checkpoint '{name}' was asked for, but {run} has {', '.join(path.name for path in found)}. Give one of these."
    )


def settings_of(checkpoint: Path, metadata: dict[str, Any]) -> Config:
    """Raises CheckpointError where another version wrote settings that this one does not have."""
    try:
        return Config.model_validate_json(json.dumps(metadata["settings"]))
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(
            f"the settings in {checkpoint} cannot be used: {'.'.join(map(str, first['loc']))}: {first['msg']}. "
            "Use the version of MyXTTS that wrote it."
        ) from error


def vocabulary_of(metadata: Mapping[str, Any]) -> Vocabulary:
    """The tables of a run by the state.json of one of its checkpoints."""
    return Vocabulary(
        SymbolTable.from_list(metadata["symbols"]), tuple(metadata["speakers"]), tuple(metadata["languages"])
    )


def weights_file(checkpoint: Path, metadata: dict[str, Any]) -> Path:
    """The archive of the weights that are meant for use: the averaged ones where the run has them."""
    return checkpoint / ("averages.npz" if metadata["settings"]["training"]["ema_decay"] else "model.npz")
