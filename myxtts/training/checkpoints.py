"""The checkpoints of a run: from the state to files (checkpoint_files.py) and back."""

import errno
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.data.batch_plan import Position
from myxtts.errors import CheckpointError
from myxtts.files import FULL, partial_folder_of
from myxtts.training.checkpoint_files import (
    SHOWN_CHARACTERS,
    Best,
    archive_of,
    checkpoint_of,
    latest,
    list_checkpoints,
    read_arrays,
    read_best,
    read_metadata,
    remove_remains,
    step_of,
    update_metadata,
    write_checkpoint,
)
from myxtts.training.schedule import observations_of, without
from myxtts.training.state import TrainingState

LEAST_SAID_S = 0.1  # a shorter wait for the checkpoint before is of the size of a copy
HEADER_BYTES = 128  # of the entry of an array in the header of its file

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StateCopy:
    """A training state as it was after a step, in host memory.

    Attributes:
        step: that step.
        progress: of state.json: step, position and what else changes with each step.
        groups: group -> name -> array. No later step changes an array.
    """

    step: int
    progress: dict[str, Any]
    groups: dict[str, dict[str, np.ndarray]]

    @property
    def file_bytes(self) -> int:
        """Bytes of the files of arrays."""
        return sum(
            array.nbytes + HEADER_BYTES
            for arrays in self.groups.values()
            for array in arrays.values()
        )


def copy_state(state: TrainingState) -> StateCopy:
    """Take the values of a state to host memory; waits for the device. A variable of two groups
    is read once.
    """
    arrays: dict[int, np.ndarray] = {}
    groups: dict[str, dict[str, np.ndarray]] = {}
    for group, variables in state.variables().items():
        for variable in variables.values():
            if id(variable) not in arrays:
                arrays[id(variable)] = state.host_value(variable)
        groups[group] = {name: arrays[id(variable)] for name, variable in variables.items()}
    return StateCopy(state.step, progress_of(state), groups)


class BackgroundWriter:
    """Runs functions in a thread, one after the other.

    The thread is a daemon: a program that must end at once (a second Ctrl-C) does not wait for it.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a function is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, write: Callable[[], None]) -> None:
        """Wait for the function before, then start this one in a thread; raises what `wait`
        raises.
        """
        self.wait()
        self._thread = threading.Thread(
            target=self._run, args=(write,), name="background writer", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the function that was started has ended, and raise its error, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:  # raised where the training waits for it
            self._error = error


class Checkpoints:
    """The checkpoints of a run: the newest `keep`, and the best. A thread writes them while
    training goes on.

    A context manager: leaving it waits for the checkpoint that is being written, unless a second
    Ctrl-C ends the program.

    Args:
        folder: made at the first save.
        keep: newest checkpoints to keep.
        metadata: of each state.json, beside step and position; see `setup.run_metadata`.

    Attributes:
        best: of the checkpoints that are written or being written.
    """

    def __init__(self, folder: Path, keep: int, metadata: dict[str, Any]):
        self._folder = folder
        self._keep = keep
        self._metadata = metadata
        self._writer = BackgroundWriter()
        self._failure: CheckpointError | None = None
        remove_remains(folder)
        newest = latest(folder)
        self.best = read_best(newest) if newest else None
        if self.best is not None and not checkpoint_of(folder, self.best.step).exists():
            self.best = None  # it was removed, so any checkpoint may be the best
        if self.best is not None and newest is not None and self._has_other_held_out(newest):
            log.warning(
                "validation uses other utterances than before: any checkpoint from now on may be"
                " the best"
            )
            self.best = None
        self._protected: set[Path] = set()  # which could not be removed
        self._provisional = {
            step_of(checkpoint)
            for checkpoint in list_checkpoints(folder)
            if is_provisional(checkpoint)
        }

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.wait()
        if (
            kind is not None and self._failure is not None
        ):  # that of the last checkpoint; `finish` was not reached
            log.error("%s", self._failure)

    def _has_other_held_out(self, checkpoint: Path) -> bool:
        """Whether a checkpoint was validated on other utterances; one of an older version does not
        tell.
        """
        before, now = read_metadata(checkpoint).get("held_out"), self._metadata.get("held_out")
        return None not in (before, now) and before != now

    def save(self, state: TrainingState, validation_loss: float | None = None) -> Path:
        """Copy the state, and start to write it; then checkpoints are removed that are neither new
        nor the best.

        If the checkpoint before is still being written, wait for it first, so that there is one
        copy at a time. If the disk refuses, the log says so, and training goes on.

        Returns:
            the folder that the checkpoint will have.
        """
        self._wait_for_checkpoint_before(state.step)
        best_before = self.best
        if validation_loss is not None and self.improves(validation_loss):
            self.best = Best(state.step, validation_loss)
        target = checkpoint_of(self._folder, state.step)
        changing = {"best": self.best, "provisional": state.step in self._provisional}
        needed = self._needed_steps(state)
        self._writer.start(
            partial(self._write, target, copy_state(state), changing, best_before, needed)
        )
        return target

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writer.is_busy

    def wait(self) -> None:
        """Wait until no checkpoint is being written."""
        self._writer.wait()

    def finish(self) -> None:
        """Wait until the newest checkpoint is on the disk.

        Raises:
            CheckpointError: the disk refused it.
        """
        self.wait()
        if self._failure is not None:
            raise self._failure

    def add_provisional(self, step: int) -> None:
        """Let the checkpoint of a step go when its observation is done and a newer one is there,
        unless it is the best.

        Until then it holds the weights with which a killed run repeats the observation.
        """
        self._provisional.add(step)

    def record(self, state: TrainingState, step: int, validation_loss: float | None) -> None:
        """Record the result of the observation of a step, in the state and in the checkpoints from
        that step on.

        Waits for the checkpoint that is being written; then the thread records the result in the
        files. A run that resumes from a checkpoint that does not know the result repeats the
        observation, with the same result.

        Args:
            validation_loss: None without a validation.
        """
        self.wait()
        state.pending_observations = without(state.pending_observations, step)
        saved = checkpoint_of(self._folder, step).exists()  # else the disk was full
        if validation_loss is not None and saved and self.improves(validation_loss):
            self.best = Best(step, validation_loss)
            self._provisional.discard(step)  # as if the validation had asked for it
        needed, provisional = self._needed_steps(state), set(self._provisional)
        self._writer.start(partial(self._record, step, self.best, needed, provisional))

    def _record(
        self, step: int, best: Best | None, needed: set[int], provisional: set[int]
    ) -> None:
        """Write the result of an observation to the checkpoints, in the thread of the writer."""
        for checkpoint in list_checkpoints(self._folder):
            if step_of(checkpoint) >= step:
                try:
                    changes = {
                        "best": best,
                        "observing": without(observations_of(read_metadata(checkpoint)), step),
                        "provisional": step_of(checkpoint) in provisional,
                    }
                    if "held_out" in self._metadata:
                        changes["held_out"] = self._metadata["held_out"]
                    update_metadata(checkpoint, changes)
                except OSError as error:
                    log.error(
                        "%s: %s. A resumed run validates step %d again.",
                        error.filename,
                        error.strerror,
                        step,
                    )
                except CheckpointError as error:
                    log.error("%s A run that resumes from it validates step %d again.", error, step)
        self._prune(needed)

    def improves(self, validation_loss: float) -> bool:
        """Whether a loss is the best so far."""
        return math.isfinite(validation_loss) and (
            self.best is None or validation_loss < self.best.loss
        )

    def _wait_for_checkpoint_before(self, step: int) -> None:
        was_busy, began_s = self._writer.is_busy, time.perf_counter()
        self.wait()
        waited_s = time.perf_counter() - began_s
        if was_busy and waited_s >= LEAST_SAID_S:
            log.warning(
                "checkpoint     training waited %.1f s at step %d: the checkpoint before was still"
                " being written. Raise --checkpoint-every, or choose a faster disk with"
                " --runs-dir.",
                waited_s,
                step,
            )

    def _write(
        self,
        target: Path,
        copy: StateCopy,
        changing: dict[str, Any],
        best_before: Best | None,
        needed: set[int],
    ) -> None:
        """Write a copy, in the thread of the writer."""
        groups = ((group, arrays.items()) for group, arrays in copy.groups.items())
        try:
            write_checkpoint(
                target, groups, {**copy.progress, **self._metadata, **changing}, replace=True
            )
        except OSError as error:
            self.best, reason = best_before, describe_refusal(target, copy, error)
            self._failure = CheckpointError(
                f"{reason} It is the last one of the run. {remedy(target.parent)}"
            )
            log.error("%s If the run goes on, it tries again at its next checkpoint.", reason)
        else:
            self._failure = None
            self._prune(needed)

    def _needed_steps(self, state: TrainingState) -> set[int]:
        """Return the steps whose checkpoints are kept however old they are."""
        return {observation.step for observation in state.pending_observations} | (
            {self.best.step} if self.best else set()
        )

    def _prune(self, needed: set[int]) -> None:
        folders = list_checkpoints(self._folder)
        asked_for = [folder for folder in folders if step_of(folder) not in self._provisional]
        kept = {*asked_for[-self._keep :], *folders[-1:]}
        for folder in folders:
            if (
                folder not in kept
                and step_of(folder) not in needed
                and folder not in self._protected
            ):
                try:
                    if not os.access(folder, os.W_OK):  # it can be renamed all the same
                        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
                    os.replace(
                        folder, partial_folder_of(folder)
                    )  # so that a part of it is never taken for a checkpoint
                    shutil.rmtree(partial_folder_of(folder))
                except OSError as error:  # such as one that the user has protected
                    self._protected.add(folder)
                    log.warning(
                        "%s cannot be removed: %s: %s", folder, error.filename, error.strerror
                    )


def is_provisional(checkpoint: Path) -> bool:
    """Whether nothing but an observation asked for a checkpoint; a damaged one is taken for an
    ordinary one.
    """
    try:
        return read_metadata(checkpoint).get("provisional", False)
    except CheckpointError:
        return False


def describe_refusal(target: Path, copy: StateCopy, error: OSError) -> str:
    """Return a sentence on why a checkpoint is not on the disk, with the file; if the disk is full,
    with the bytes.
    """
    space = ""
    if error.errno in FULL:
        existing = next(folder for folder in target.parents if folder.exists())
        free_mb = shutil.disk_usage(existing).free / 1e6
        space = f" ({copy.file_bytes / 1e6:,.1f} MB are needed, {free_mb:,.1f} MB are free)"
    return (
        f"the checkpoint of step {copy.step} was not written: {error.filename or target}:"
        f" {error.strerror}{space}."
    )


def remedy(folder: Path) -> str:
    """Return what to do if the last checkpoint of a run was not written to the folder of its
    checkpoints.
    """
    newest = latest(folder)
    source = f", which continues from {newest}" if newest else ""
    return (
        f"Free some disk space or fix the permissions of {folder}, then resume with"
        f" --resume{source}."
    )


def save_nothing(state: TrainingState, validation_loss: float | None = None) -> None:
    """Stand in for `Checkpoints.save` in a process that writes no checkpoints."""


def write_state(target: Path, state: TrainingState, metadata: Mapping[str, Any]) -> None:
    """Write a state as a checkpoint, with its own step and position beside the metadata; training
    waits for it.
    """
    groups = ((group, state.arrays(group)) for group in state.variables())
    write_checkpoint(target, groups, {**progress_of(state), **metadata})


def progress_of(state: TrainingState) -> dict[str, Any]:
    """Return what a checkpoint records of a state beside its variables."""
    return {
        "step": state.step,
        "position": state.position,
        "replicas": state.replicas.count,
        "audio_s": state.audio_s,
        "audio_s_since_sync": state.audio_s_since_sync,
        "observing": state.pending_observations,
    }


def restore(checkpoint: Path, state: TrainingState) -> None:
    """Set every variable of the state, its step and its position from a checkpoint.

    Raises:
        CheckpointError: the checkpoint is damaged, or of another architecture (names the first
            difference). The state is unchanged then.
    """
    metadata = read_metadata(checkpoint)
    restore_groups(checkpoint, state.variables())
    state.step, state.audio_s = metadata["step"], metadata["audio_s"]
    state.audio_s_since_sync = metadata["audio_s_since_sync"]
    state.position, before = position_of(metadata), metadata["replicas"]
    if before != state.replicas.count:
        log.info(
            "replicas       %d now, %d before: they share the rest of the epoch",
            state.replicas.count,
            before,
        )
        state.position = state.position.after_resize(before)
    state.began = state.step, state.position
    state.pending_observations = observations_of(metadata)


def position_of(metadata: Mapping[str, Any]) -> Position:
    """Return the position in the plan that a checkpoint recorded."""
    epoch, step, history = metadata["position"]
    return Position(epoch, step, tuple(map(tuple, history)))


def restore_groups(checkpoint: Path, groups: Mapping[str, Mapping[str, tf.Variable]]) -> None:
    """Set variables from groups of a checkpoint that have exactly their names, shapes and types.

    Raises:
        CheckpointError: naming the first difference; no variable is changed then.
    """
    values = {
        group: _arrays_for(checkpoint, group, variables) for group, variables in groups.items()
    }
    for group, variables in groups.items():
        for name, variable in variables.items():
            variable.assign(values[group][name])


def _arrays_for(
    checkpoint: Path, group: str, variables: Mapping[str, tf.Variable]
) -> dict[str, np.ndarray]:
    """Return the arrays of a group, which fit the variables of the same names."""
    arrays = read_arrays(checkpoint, group)
    path = archive_of(checkpoint, group)
    check_names(path, set(arrays), set(variables))
    for name, variable in variables.items():
        array = arrays[name]
        dtype = np.dtype(variable.dtype.as_numpy_dtype)
        shape = tuple(variable.shape)
        if (array.dtype, array.shape) != (dtype, shape):
            raise CheckpointError(
                f"{path}: '{name}' is {array.dtype} {array.shape}, but the model has {dtype}"
                f" {shape}. Use the settings that the run was started with (its config.yaml)."
            )
    return arrays


def check_names(path: Path, saved: set[str], expected: set[str]) -> None:
    """Raise CheckpointError if a group has not exactly the expected names."""
    if saved != expected:
        name = min(saved ^ expected)
        shown = f"{name[:SHOWN_CHARACTERS]}…" if len(name) > SHOWN_CHARACTERS else name
        where = "the checkpoint" if name in saved else "the model"
        raise CheckpointError(
            f"{path}: '{shown}' is only in {where} ({len(saved)} variables there, {len(expected)}"
            " in the model). Use the settings that the run was started with (its config.yaml)."
        )
