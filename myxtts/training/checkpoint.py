"""The checkpoints of a run: state → files (archive.py) and back."""

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
        about: what goes into each state.json beside step and position: tables, corpus, settings.
    """

    def __init__(self, folder: Path, keep: int, metadata: dict[str, Any]):
        self._folder = folder
        self._keep = keep
        self._about = metadata
        for partial in folder.glob(".partial-*"):  # a kill left it
            shutil.rmtree(partial)
        newest = latest(folder)
        self.best = read_best(newest) if newest else None
        if self.best is not None and not checkpoint_of(folder, self.best.step).exists():
            self.best = None  # a best that is gone is no bar to beat

    def save(self, state: TrainingState, validation_loss: float | None = None) -> Path:
        """Write the state, under a temporary name first; then drop what need not be kept."""
        if validation_loss is not None and self.improves(validation_loss):
            self.best = Best(state.step, validation_loss)
        target = checkpoint_of(self._folder, state.step)
        write_state(target, state, self._about | {"best": self.best}, replace=True)  # a merge changes it at its step
        self._prune()
        return target

    def improves(self, validation_loss: float) -> bool:
        return math.isfinite(validation_loss) and (self.best is None or validation_loss < self.best.loss)

    def _prune(self) -> None:
        for folder in list_checkpoints(self._folder)[: -self._keep]:
            if self.best is None or step_of(folder) != self.best.step:
                os.replace(folder, partial_of(folder))  # so that no part of it passes for a checkpoint
                shutil.rmtree(partial_of(folder))


def save_nothing(state: TrainingState, validation_loss: float | None = None) -> None:
    """Stand in for `Checkpoints.save` in a process that writes no checkpoints."""


def write_state(target: Path, state: TrainingState, metadata: Mapping[str, Any], replace: bool = False) -> None:
    """Write a state as a checkpoint, with all that `about` says beside what the state itself knows."""
    groups = ((group, state.arrays(group)) for group in state.variables())
    own = {
        "step": state.step,
        "position": state.position,
        "replicas": state.replicas.count,
        "audio_s": state.audio_s,
        "audio_s_since_sync": state.audio_s_since_sync,
    }
    write_checkpoint(target, groups, {**own, **metadata}, replace=replace)


def restore(checkpoint: Path, state: TrainingState) -> None:
    """Set every variable of the state, and its step and position, from a checkpoint.

    Raises:
        CheckpointError: damaged, or of another architecture; names the first difference. The state
            is then not to be used.
    """
    metadata = read_metadata(checkpoint)
    for group, variables in state.variables().items():
        restore_variables(checkpoint / f"{group}.npz", variables)
    state.step, state.audio_s = metadata["step"], metadata["audio_s"]
    state.audio_s_since_sync = metadata["audio_s_since_sync"]
    state.position, before = position_of(metadata), metadata["replicas"]
    if before != state.replicas.count:
        log.info("replicas       %d now, %d before: they share what is left of the epoch", state.replicas.count, before)
        state.position = state.position.after_resize(before)
    state.began = state.step, state.position


def position_of(metadata: dict[str, Any]) -> Position:
    epoch, step, *earlier = metadata["position"]
    return Position(epoch, step, *(tuple(map(tuple, one)) for one in earlier))


def restore_variables(path: Path, variables: Mapping[str, tf.Variable]) -> None:
    """Set variables from an archive that has exactly their names and shapes.

    Raises:
        CheckpointError: naming the first difference.
    """
    arrays = read_arrays(path)
    check_names(path, set(arrays), set(variables))
    for name, variable in variables.items():
        if arrays[name].shape != tuple(variable.shape):
            raise CheckpointError(
                f"{path}: '{name}' has shape {arrays[name].shape}, and the model has {tuple(variable.shape)}. "
                "Use the settings the run was started with (its config.yaml)."
            )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def check_names(path: Path, found: set[str], asked: set[str]) -> None:
    if found != asked:
        name = min(found ^ asked)
        where = "the checkpoint" if name in found else "the model"
        raise CheckpointError(
            f"{path}: '{name}' is only in {where} ({len(found)} variables there, {len(asked)} in the model). "
            "Use the settings the run was started with (its config.yaml)."
        )
