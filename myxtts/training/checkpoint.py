"""The checkpoints of a run: from the state to files (checkpoint_files.py) and back."""

import logging
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from myxtts.data.plan_iterator import Position
from myxtts.errors import CheckpointError
from myxtts.training.checkpoint_files import (
    Best,
    checkpoint_of,
    latest,
    list_checkpoints,
    partial_of,
    read_arrays,
    read_best,
    read_metadata,
    step_of,
    write_checkpoint,
)
from myxtts.training.state import TrainingState

log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of a run: the newest `keep`, and the best.

    Args:
        folder: made at the first save.
        keep: newest checkpoints to keep.
        metadata: of each state.json, beside step and position; see `setup.run_metadata`.
    """

    def __init__(self, folder: Path, keep: int, metadata: dict[str, Any]):
        self._folder = folder
        self._keep = keep
        self._metadata = metadata
        for partial in folder.glob(".partial-*"):  # left behind by a kill
            shutil.rmtree(partial)
        newest = latest(folder)
        self.best = read_best(newest) if newest else None
        if self.best is not None and not checkpoint_of(folder, self.best.step).exists():
            self.best = None  # it was removed, so any checkpoint may be the best

    def save(self, state: TrainingState, validation_loss: float | None = None) -> Path:
        """Write the state, then remove the checkpoints that are neither new nor the best."""
        if validation_loss is not None and self.improves(validation_loss):
            self.best = Best(state.step, validation_loss)
        target = checkpoint_of(self._folder, state.step)
        write_state(target, state, self._metadata | {"best": self.best}, replace=True)
        self._prune()
        return target

    def improves(self, validation_loss: float) -> bool:
        """Whether a loss is the best so far."""
        return math.isfinite(validation_loss) and (self.best is None or validation_loss < self.best.loss)

    def _prune(self) -> None:
        for folder in list_checkpoints(self._folder)[: -self._keep]:
            if self.best is None or step_of(folder) != self.best.step:
                os.replace(folder, partial_of(folder))  # so that a part of it is never taken for a checkpoint
                shutil.rmtree(partial_of(folder))


def save_nothing(state: TrainingState, validation_loss: float | None = None) -> None:
    """Stand in for `Checkpoints.save` in a process that writes no checkpoints."""


def write_state(target: Path, state: TrainingState, metadata: Mapping[str, Any], replace: bool = False) -> None:
    """Write a state as a checkpoint, with its own step and position beside the metadata."""
    groups = ((group, state.arrays(group)) for group in state.variables())
    progress = {
        "step": state.step,
        "position": state.position,
        "replicas": state.replicas.count,
        "audio_s": state.audio_s,
        "audio_s_since_sync": state.audio_s_since_sync,
    }
    write_checkpoint(target, groups, {**progress, **metadata}, replace=replace)


def restore(checkpoint: Path, state: TrainingState) -> None:
    """Set every variable of the state, its step and its position from a checkpoint.

    Raises:
        CheckpointError: the checkpoint is damaged, or of another architecture (names the first difference). The state
            is unusable then.
    """
    metadata = read_metadata(checkpoint)
    for group, variables in state.variables().items():
        restore_variables(checkpoint / f"{group}.npz", variables)
    state.step, state.audio_s = metadata["step"], metadata["audio_s"]
    state.audio_s_since_sync = metadata["audio_s_since_sync"]
    state.position, before = position_of(metadata), metadata["replicas"]
    if before != state.replicas.count:
        log.info("replicas       %d now, %d before: they share the rest of the epoch", state.replicas.count, before)
        state.position = state.position.after_resize(before)
    state.began = state.step, state.position


def position_of(metadata: dict[str, Any]) -> Position:
    """Return the position in the plan that a checkpoint recorded."""
    epoch, step, history = metadata["position"]
    return Position(epoch, step, tuple(map(tuple, history)))


def restore_variables(path: Path, variables: Mapping[str, tf.Variable]) -> None:
    """Set variables from an archive that must have exactly their names and shapes.

    Raises:
        CheckpointError: naming the first difference.
    """
    arrays = read_arrays(path)
    check_names(path, set(arrays), set(variables))
    for name, variable in variables.items():
        if arrays[name].shape != tuple(variable.shape):
            raise CheckpointError(
                f"{path}: '{name}' has shape {arrays[name].shape}, but the model has {tuple(variable.shape)}. "
                "Use the settings that the run was started with (its config.yaml)."
            )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def check_names(path: Path, saved: set[str], expected: set[str]) -> None:
    """Raise CheckpointError if an archive has not exactly the expected names."""
    if saved != expected:
        name = min(saved ^ expected)
        where = "the checkpoint" if name in saved else "the model"
        raise CheckpointError(
            f"{path}: '{name}' is only in {where} ({len(saved)} variables there, {len(expected)} in the model). "
            "Use the settings that the run was started with (its config.yaml)."
        )
