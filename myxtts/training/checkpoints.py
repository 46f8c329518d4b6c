"""The checkpoints of a run: from the state to files (checkpoint_files.py) and back."""

import errno
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.errors import CheckpointError
from myxtts.files import FULL, partial_folder_of
from myxtts.training.checkpoint_files import (
    MAX_REASON_CHARACTERS,
    Best,
    Checkpoint,
    Record,
    archive_of,
    checkpoint_of,
    latest,
    list_checkpoints,
    read_record,
    remove_partial_checkpoints,
    step_of,
    write_checkpoint,
)
from myxtts.training.schedule import without
from myxtts.training.state import TrainingState

# A shorter wait for the previous checkpoint takes as long as a copy.
MIN_LOGGED_WAIT_S = 0.1
# Of the entry of an array in the header of its file.
HEADER_BYTES = 128

Groups = dict[str, dict[str, np.ndarray]]
"""Group of arrays -> name -> array."""

log = logging.getLogger(__name__)


def copy_arrays(state: TrainingState) -> Groups:
    """Copy the values of a state to host memory; no later step changes them.

    Waits for the device. A variable of two groups is read once.
    """
    arrays: dict[int, np.ndarray] = {}
    groups: Groups = {}
    for group, variables in state.variables().items():
        for variable in variables.values():
            if id(variable) not in arrays:
                arrays[id(variable)] = state.host_value(variable)
        groups[group] = {name: arrays[id(variable)] for name, variable in variables.items()}
    return groups


def record_of(state: TrainingState, record: Record) -> Record:
    """Return the record of a run with the progress of its state."""
    return record.model_copy(
        update={
            "step": state.step,
            "position": state.position,
            "replicas": state.replicas.count,
            "audio_s": state.audio_s,
            "audio_s_since_sync": state.audio_s_since_sync,
            "pending_observations": state.pending_observations,
        }
    )


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
        """Start a function in a thread, after the previous one; raises what `wait` raises."""
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
        error = self._error
        self._error = None
        if error is not None:
            raise error

    def _run(self, write: Callable[[], None]) -> None:
        # Whatever it is, it is raised where the training waits for the thread.
        try:
            write()
        except BaseException as error:
            self._error = error


class Checkpoints:
    """The newest `keep` checkpoints of a run and the best; a thread writes them during training.

    A context manager: leaving it waits for the checkpoint that is being written, unless a second
    Ctrl-C ends the program.

    Args:
        folder: made at the first save.
        keep: newest checkpoints to keep.
        record: of the run; see `setup.run_record`.

    Attributes:
        best: of the checkpoints that are written or being written.
    """

    def __init__(self, folder: Path, keep: int, record: Record):
        self._folder = folder
        self._keep = keep
        self._record = record
        self._writer = BackgroundWriter()
        self._failure: CheckpointError | None = None
        # Checkpoints that could not be removed.
        self._protected: set[Path] = set()
        self._provisional: set[int] = set()
        self.best: Best | None = None
        remove_partial_checkpoints(folder)
        self._read_existing()

    def _read_existing(self) -> None:
        """Find the best and the provisional checkpoints, reading each state.json once."""
        checkpoints = list_checkpoints(self._folder)
        for checkpoint in checkpoints[:-1]:
            # A damaged one counts as one that was asked for.
            try:
                if read_record(checkpoint).provisional:
                    self._provisional.add(step_of(checkpoint))
            except CheckpointError as error:
                log.debug("%s", error)
        if not checkpoints:
            return
        newest = checkpoints[-1]
        record = read_record(newest)
        if record.provisional:
            self._provisional.add(step_of(newest))
        # Any checkpoint may be the best after the previous best one was removed, and after the
        # held-out utterances have changed, since their losses cannot be compared.
        if record.best is None or not checkpoint_of(self._folder, record.best.step).exists():
            return
        utterances = (record.held_out, self._record.held_out)
        if None not in utterances and utterances[0] != utterances[1]:
            log.warning(
                "validation uses other utterances than before: any checkpoint from now on may be"
                " the best"
            )
            return
        self.best = record.best

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.wait()
        # `finish` was not reached, which raises the error of the last checkpoint.
        if kind is not None and self._failure is not None:
            log.error("%s", self._failure)

    def save(self, state: TrainingState, validation_loss: float | None = None) -> Path:
        """Copy the state, start to write it, then remove checkpoints that are neither new nor best.

        If the previous checkpoint is still being written, wait for it first, so that there is one
        copy at a time. If the disk refuses, the log says so, and training goes on.

        Returns:
            the folder that the checkpoint will have.
        """
        self._wait_for_previous(state.step)
        previous_best = self.best
        if validation_loss is not None and self.improves(validation_loss):
            self.best = Best(state.step, validation_loss)
        target = checkpoint_of(self._folder, state.step)
        record = record_of(state, self._record).model_copy(
            update={"best": self.best, "provisional": state.step in self._provisional}
        )
        needed = self._needed_steps(state)
        self._writer.start(
            partial(self._write, target, copy_arrays(state), record, previous_best, needed)
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
        """Let a checkpoint go when its observation is done and a newer one is there.

        The best one stays. Until then it holds the weights with which a killed run repeats the
        observation.
        """
        self._provisional.add(step)

    def record(self, state: TrainingState, step: int, validation_loss: float | None) -> None:
        """Record the result of an observation in the state and in the checkpoints from its step on.

        Waits for the checkpoint that is being written; then the thread records the result in the
        files. A run that resumes from a checkpoint that does not know the result repeats the
        observation, with the same result.

        Args:
            validation_loss: None without a validation.
        """
        self.wait()
        state.pending_observations = without(state.pending_observations, step)
        # The checkpoint is missing if the disk was full.
        is_saved = checkpoint_of(self._folder, step).exists()
        if validation_loss is not None and is_saved and self.improves(validation_loss):
            self.best = Best(step, validation_loss)
            # As if the validation had asked for it.
            self._provisional.discard(step)
        needed = self._needed_steps(state)
        provisional = set(self._provisional)
        self._writer.start(partial(self._write_result, step, self.best, needed, provisional))

    def _write_result(
        self, step: int, best: Best | None, needed: set[int], provisional: set[int]
    ) -> None:
        """Write the result of an observation to the checkpoints, in the thread of the writer."""
        for path in list_checkpoints(self._folder):
            if step_of(path) < step:
                continue
            try:
                checkpoint = Checkpoint.read(path)
                checkpoint.update(
                    best=best,
                    pending_observations=without(checkpoint.record.pending_observations, step),
                    provisional=step_of(path) in provisional,
                    held_out=self._record.held_out,
                )
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

    def _wait_for_previous(self, step: int) -> None:
        was_busy = self._writer.is_busy
        began_s = time.perf_counter()
        self.wait()
        waited_s = time.perf_counter() - began_s
        if was_busy and waited_s >= MIN_LOGGED_WAIT_S:
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
        groups: Groups,
        record: Record,
        previous_best: Best | None,
        needed: set[int],
    ) -> None:
        """Write a copy, in the thread of the writer."""
        contents = ((group, arrays.items()) for group, arrays in groups.items())
        try:
            write_checkpoint(target, contents, record, replace=True)
        except OSError as error:
            self.best = previous_best
            reason = disk_error_message(target, groups, error)
            self._failure = CheckpointError(
                f"{reason} It is the last one of the run. {disk_error_hint(target.parent)}"
            )
            log.error("%s If the run goes on, it tries again at its next checkpoint.", reason)
        else:
            self._failure = None
            self._prune(needed)

    def _needed_steps(self, state: TrainingState) -> set[int]:
        """Return the steps whose checkpoints are kept however old they are."""
        steps = {observation.step for observation in state.pending_observations}
        if self.best:
            steps.add(self.best.step)
        return steps

    def _prune(self, needed: set[int]) -> None:
        folders = list_checkpoints(self._folder)
        asked_for = [folder for folder in folders if step_of(folder) not in self._provisional]
        kept = {*asked_for[-self._keep :], *folders[-1:], *self._protected}
        for folder in folders:
            if folder in kept or step_of(folder) in needed:
                continue
            # One that the user has protected can still be renamed. The rename comes first, so that
            # a part of it never counts as a checkpoint.
            try:
                if not os.access(folder, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
                os.replace(folder, partial_folder_of(folder))
                shutil.rmtree(partial_folder_of(folder))
            except OSError as error:
                self._protected.add(folder)
                log.warning("%s cannot be removed: %s: %s", folder, error.filename, error.strerror)


def disk_error_message(target: Path, groups: Groups, error: OSError) -> str:
    """Say why a checkpoint is not on the disk, with the file; on a full disk, also the bytes."""
    space = ""
    if error.errno in FULL:
        arrays = chain.from_iterable(named.values() for named in groups.values())
        needed_mb = sum(array.nbytes + HEADER_BYTES for array in arrays) / 1e6
        existing = next(folder for folder in target.parents if folder.exists())
        free_mb = shutil.disk_usage(existing).free / 1e6
        space = f" ({needed_mb:,.1f} MB are needed, {free_mb:,.1f} MB are free)"
    return (
        f"the checkpoint of step {step_of(target)} was not written: {error.filename or target}:"
        f" {error.strerror}{space}."
    )


def disk_error_hint(folder: Path) -> str:
    """Say what to do if the last checkpoint of a run was not written to the folder of all."""
    newest = latest(folder)
    source = f", which continues from {newest}" if newest else ""
    return (
        f"Free some disk space or fix the permissions of {folder}, then resume with"
        f" --resume{source}."
    )


def save_nothing(state: TrainingState, validation_loss: float | None = None) -> None:
    """Stand in for `Checkpoints.save` in a process that writes no checkpoints."""


def write_state(target: Path, state: TrainingState, record: Record) -> None:
    """Write a state as a checkpoint; training waits for it."""
    groups = ((group, state.arrays(group)) for group in state.variables())
    write_checkpoint(target, groups, record_of(state, record))


def restore(checkpoint: Checkpoint, state: TrainingState) -> None:
    """Set every variable of the state, its step and its position from a checkpoint.

    Raises:
        CheckpointError: the checkpoint is damaged, or of another architecture (names the first
            difference). The state is unchanged then.
    """
    load_variables(checkpoint, state.variables())
    record = checkpoint.record
    state.step = record.step
    state.audio_s = record.audio_s
    state.audio_s_since_sync = record.audio_s_since_sync
    state.position = record.position
    if record.replicas != state.replicas.count:
        log.info(
            "replicas       %d now, %d before: they share the rest of the epoch",
            state.replicas.count,
            record.replicas,
        )
        state.position = state.position.after_resize(record.replicas)
    state.session_start = state.step, state.position
    state.pending_observations = record.pending_observations


def load_variables(checkpoint: Checkpoint, groups: Mapping[str, Mapping[str, tf.Variable]]) -> None:
    """Set variables from groups of a checkpoint that have exactly their names, shapes and types.

    All weights that come from files enter a network here.

    Raises:
        CheckpointError: naming the first difference; no variable is changed then.
    """
    values = {}
    for group, variables in groups.items():
        values[group] = checkpoint.arrays(group)
        check_fit(archive_of(checkpoint.path, group), values[group], variables)
    for group, variables in groups.items():
        assign_arrays(variables, values[group])


def assign_arrays(variables: Mapping[str, tf.Variable], arrays: Mapping[str, np.ndarray]) -> None:
    for name, variable in variables.items():
        variable.assign(arrays[name])


def check_fit(
    path: Path, arrays: Mapping[str, np.ndarray], variables: Mapping[str, tf.Variable]
) -> None:
    """Raise CheckpointError if arrays do not fit the variables; names the first difference."""
    if arrays.keys() != variables.keys():
        name = min(arrays.keys() ^ variables.keys())
        shown = name
        if len(name) > MAX_REASON_CHARACTERS:
            shown = f"{name[:MAX_REASON_CHARACTERS]}…"
        where = "the checkpoint" if name in arrays else "the model"
        raise CheckpointError(
            f"{path}: '{shown}' is only in {where} ({len(arrays)} variables there,"
            f" {len(variables)} in the model). Use the settings that the run was started with (its"
            " config.yaml)."
        )
    for name, variable in variables.items():
        array = arrays[name]
        dtype = np.dtype(variable.dtype.as_numpy_dtype)
        shape = tuple(variable.shape)
        if (array.dtype, array.shape) != (dtype, shape):
            raise CheckpointError(
                f"{path}: '{name}' is {array.dtype} {array.shape}, but the model has {dtype}"
                f" {shape}. Use the settings that the run was started with (its config.yaml)."
            )
