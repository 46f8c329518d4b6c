"""The checkpoint of a run to use, its settings and its vocabulary. No TensorFlow."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from myxtts.audio.format import UNRECORDED_FORMAT
from myxtts.config.schema import Config
from myxtts.data.manifest import Vocabulary
from myxtts.errors import CheckpointError
from myxtts.text.symbols import SymbolTable
from myxtts.training.checkpoint_files import checkpoint_of, latest, list_checkpoints, read_best
from myxtts.training.missing_run import describe_missing

log = logging.getLogger(__name__)


def select_checkpoint(run: Path, name: str | None = None) -> Path:
    """Return a checkpoint of a run by its name, such as step-002000; by default the best, or else
    the newest.

    Raises:
        CheckpointError: the run has no checkpoint, or none of this name.
    """
    newest = latest(run / "checkpoints")
    if newest is None:
        raise CheckpointError(describe_missing(run))
    if name is not None:
        return _by_name(run, name)
    best = read_best(newest)
    if best is None:
        return newest
    checkpoint = checkpoint_of(newest.parent, best.step)
    if not checkpoint.exists():
        log.warning("the best checkpoint %s no longer exists: using the newest", checkpoint)
        return newest
    return checkpoint


def _by_name(run: Path, name: str) -> Path:
    checkpoints = list_checkpoints(run / "checkpoints")
    for checkpoint in checkpoints:
        if checkpoint.name == name:
            return checkpoint
    raise CheckpointError(
        f"checkpoint '{name}' was requested, but {run} has"
        f" {', '.join(path.name for path in checkpoints)}. Give one of these."
    )


def settings_of(checkpoint: Path, metadata: dict[str, Any]) -> Config:
    """Return the settings of a run; raise CheckpointError if this version does not have them."""
    try:
        return Config.model_validate_json(json.dumps(metadata["settings"]))
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(
            f"the settings in {checkpoint} cannot be used: {'.'.join(map(str, first['loc']))}:"
            f" {first['msg']}. Use the version of MyXTTS that wrote it."
        ) from error


def vocabulary_of(metadata: Mapping[str, Any]) -> Vocabulary:
    """Return the vocabulary of a run from the metadata of one of its checkpoints."""
    return Vocabulary(
        SymbolTable.from_list(metadata["symbols"]),
        tuple(metadata["speakers"]),
        tuple(metadata["languages"]),
    )


def audio_format_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the audio format of a checkpoint. Versions that did not record it had a single one."""
    recorded = metadata.get("audio_format", UNRECORDED_FORMAT)
    return recorded if isinstance(recorded, dict) else {}


def check_task(checkpoint: Path, trained: str, task: str) -> None:
    """Raise CheckpointError if the task that a checkpoint was trained for is not the one that is
    needed.
    """
    if trained == task:
        return
    if task == "tts" and trained == "vocoder":
        advice = (
            "A vocoder needs a voice in front of it: give the run of a voice, and this run with"
            " --vocoder"
        )
    else:
        advice = f"Give a run that was trained with --task {task}"
    raise CheckpointError(
        f"{checkpoint} cannot be used for the task {task}: it was trained for {trained}. {advice}."
    )


def weights_group(metadata: Mapping[str, Any]) -> str:
    """Return the group of the weights to use: the averaged ones if the run has them."""
    return "averages" if metadata["settings"]["training"]["ema_decay"] else "model"
