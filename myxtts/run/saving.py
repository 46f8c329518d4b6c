"""The checkpoints of a run: from the state to files (`checkpoints.files`) and back.

What comes in is the state after a step. The main thread waits for the checkpoint before, copies all
variables to host memory, and goes on training. A thread writes the copy and removes old ones. When
the result of an observation is known, the same way adds it to the checkpoints from its step on.
What goes out are folders with weights and a record. `restore` takes one of them back into a state.
"""

import errno
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.base.errors import CheckpointError
from myxtts.base.files import partial_folder_of
from myxtts.base.progress import without
from myxtts.checkpoints import files as checkpoint_files
from myxtts.checkpoints.files import Best, Checkpoint, Record, list_checkpoints, step_of
from myxtts.checkpoints.variables import Groups, load_variables
from myxtts.report.metrics import FIGURES
from myxtts.run.state import TrainingState

# A shorter wait for the previous checkpoint is not worth a warning: a copy takes as long.
MIN_LOGGED_WAIT_S = 0.1

log = logging.getLogger(__name__)


def copy_arrays(state: TrainingState) -> Groups:
    """Copy a state to host memory, where no later step changes it; wait for the device."""
    # A variable that is its own average is in two groups, and is read once.
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
    progress = "step position batch_shares audio_s audio_s_since_sync pending_observations"
    changes = {name: getattr(state, name) for name in progress.split()}
    return record.model_copy(update={**changes, "replicas": state.replicas.count})


class Checkpoints:
    """The newest `keep` checkpoints of a run and the best; a thread writes them during training.

        with Checkpoints(folder, keep=3, record=record) as checkpoints:
            checkpoints.save(state)
            checkpoints.finish()

    Leaving the scope waits for the newest, unless a second Ctrl-C ends the program.
    """

    def __init__(self, folder: Path, keep: int, record: Record):
        self._folder = folder
        self._keep = keep
        self._record = record
        self._thread: threading.Thread | None = None
        self._defect: BaseException | None = None
        self._failure: CheckpointError | None = None
        self._protected: set[Path] = set()  # could not be removed
        self._figure = FIGURES[record.settings.run.select_by]
        self.best: Best | None = None
        self.since_best = 0  # number of results
        checkpoint_files.remove_partial_checkpoints(folder)
        for checkpoint in reversed(list_checkpoints(folder)):
            # The newest may be damaged.
            with suppress(CheckpointError):
                newest = checkpoint_files.read_record(checkpoint)
                if newest.best is not None:
                    self._restore_best(newest, newest.best)
                break

    def _restore_best(self, newest: Record, best: Best) -> None:
        """Take over the best checkpoint of before, if it exists and its figure can be compared."""
        record = self._record
        if not checkpoint_files.checkpoint_of(self._folder, best.step).exists():
            return
        change = ""
        if newest.held_out and record.held_out and newest.held_out != record.held_out:
            change = "validation uses other utterances than before"
        elif newest.selected_by != record.selected_by:
            change = f"selected by {record.selected_by}, and before by {newest.selected_by}"
        if change:
            log.warning("%s: any checkpoint from now on may be the best", change)
            return
        self.best, self.since_best = best, newest.since_best

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or issubclass(kind, Exception):
            self.wait()
        # `finish`, which raises the error of the last checkpoint, was not reached.
        if kind is not None and self._failure is not None:
            log.error("%s", self._failure)

    # The wait for the previous checkpoint comes first, so that host memory holds one copy at a
    # time. Copying waits for the device. The record and the steps to keep are read here as well,
    # because the main thread changes the state while the other thread writes.
    def save(self, state: TrainingState) -> Path:
        """Copy the state, start to write it, and return the folder that the checkpoint will have.

        If the disk refuses, the log says so, and training goes on.
        """
        was_busy = self.is_writing
        began_s = time.perf_counter()
        self.wait()
        waited_s = time.perf_counter() - began_s
        if was_busy and waited_s >= MIN_LOGGED_WAIT_S:
            waited = f"training waited {waited_s:.1f} s at step {state.step} for the one before"
            log.warning("checkpoint     %s. Raise --checkpoint-every, or use a faster disk", waited)
        target = checkpoint_files.checkpoint_of(self._folder, state.step)
        chosen = {"best": self.best, "since_best": self.since_best}
        record = record_of(state, self._record).model_copy(update=chosen)
        needed = self._needed_steps(state)
        self._start(partial(self._write, target, copy_arrays(state), record, needed))
        return target

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def _start(self, write: Callable[[], None]) -> None:
        def run() -> None:
            # The main thread raises any error when it waits for this thread.
            try:
                write()
            except BaseException as error:
                self._defect = error

        self.wait()
        # A program that must end at once (a second Ctrl-C) does not wait for a daemon.
        self._thread = threading.Thread(target=run, name="background writer", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until no checkpoint is being written; raise a defect of the writing, once."""
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        defect, self._defect = self._defect, None
        if defect is not None:
            raise defect

    def finish(self) -> None:
        """Wait until the newest checkpoint is on the disk; raise CheckpointError if it refused."""
        self.wait()
        if self._failure:
            raise self._failure

    @property
    def is_patience_over(self) -> bool:
        """Whether as many results as --patience says were no better than the best."""
        return 0 < self._record.settings.training.patience <= self.since_best

    @property
    def best_line(self) -> str:
        """The best checkpoint, and by what: `step-002000, DNSMOS 3.412; then 3 no better`."""
        if self.best is None:
            return f"none has a {self._figure.label} yet: the newest is used"
        name = checkpoint_files.checkpoint_of(self._folder, self.best.step).name
        line = f"{name}, {self._figure.label} {self.best.value:.4g}"
        if self.since_best:
            line += f"; then {self.since_best} no better"
        return line

    def best_with(self, step: int, value: float) -> Best | None:
        """Return the best checkpoint, given the figure's value at one more step."""
        sign = self._figure.sign
        least = math.inf
        if self.best:
            least = sign * self.best.value
        return Best(step, value) if sign * value < least else self.best

    def record(self, state: TrainingState, step: int, value: float | None) -> None:
        """Record the result of an observation in the state and in the checkpoints from its step on.

        A run that resumes from a checkpoint without the result repeats it. `value` is the figure
        that chooses the best checkpoint; None if the observation did not measure it.
        """
        self.wait()
        state.pending_observations = without(state.pending_observations, step)
        # The checkpoint is missing if the disk was full.
        is_saved = checkpoint_files.checkpoint_of(self._folder, step).exists()
        if value is not None and is_saved:
            best = self.best_with(step, value)
            self.since_best += 1
            if best != self.best:
                self.best, self.since_best = best, 0
        chosen = {"best": self.best, "since_best": self.since_best}
        self._start(partial(self._write_result, step, chosen, self._needed_steps(state)))

    def _write_result(self, step: int, chosen: Mapping[str, Any], needed: set[int]) -> None:
        """Write the result of an observation to the checkpoints, in the thread."""
        for path in list_checkpoints(self._folder):
            if step_of(path) < step:
                continue
            try:
                checkpoint = Checkpoint.read(path)
                checkpoint.update(
                    **chosen,
                    selected_by=self._record.selected_by,
                    pending_observations=without(checkpoint.record.pending_observations, step),
                    held_out=self._record.held_out,
                )
            except (OSError, CheckpointError) as error:
                log.error("%s A run that resumes from it validates step %d again.", error, step)
        self._prune(needed)

    def _write(self, target: Path, groups: Groups, record: Record, needed: set[int]) -> None:
        """Write a copy, in the thread."""
        contents = ((group, arrays.items()) for group, arrays in groups.items())
        try:
            checkpoint_files.write_checkpoint(target, contents, record, replace=True)
        except OSError as error:
            free_mb = shutil.disk_usage(self._folder.parent).free / 1e6
            arrays = chain.from_iterable(named.values() for named in groups.values())
            needed_mb = sum(array.nbytes for array in arrays) / 1e6
            reason = (
                f"the checkpoint of step {record.step} was not written: {error.filename or target}:"
                f" {error.strerror} ({needed_mb:,.1f} MB are needed, {free_mb:,.1f} MB are free)."
            )
            self._failure = CheckpointError(
                f"{reason} It is the last one of the run. Free some disk space or fix the"
                f" permissions of {self._folder}, then resume with --resume."
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
        kept = {*folders[-self._keep :], *self._protected}
        for folder in folders:
            if folder in kept or step_of(folder) in needed:
                continue
            # The rename comes first, so that half a folder never counts as a checkpoint. A folder
            # that the user has protected could still be renamed, so its permission is checked.
            try:
                if not os.access(folder, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
                os.replace(folder, partial_folder_of(folder))
                shutil.rmtree(partial_folder_of(folder))
            except OSError as error:
                self._protected.add(folder)
                log.warning("%s cannot be removed: %s: %s", folder, error.filename, error.strerror)


def save_nothing(state: TrainingState) -> None:
    """Stand in for `Checkpoints.save` in a process that writes no checkpoints."""


def write_state(target: Path, state: TrainingState, record: Record) -> None:
    """Write a state as a checkpoint; training waits for it."""
    groups = ((group, state.arrays(group)) for group in state.variables())
    checkpoint_files.write_checkpoint(target, groups, record_of(state, record))


def restore(checkpoint: Checkpoint, state: TrainingState) -> None:
    """Set every variable of the state, its step and its position; raises as `load_variables`."""
    load_variables(checkpoint, state.variables())
    record = checkpoint.record
    state.step = record.step
    state.audio_s = record.audio_s
    state.audio_s_since_sync = record.audio_s_since_sync
    state.position = record.position
    if record.replicas != state.replicas.count:
        line = "replicas       %d now, %d before: they share the rest of the epoch"
        log.info(line, state.replicas.count, record.replicas)
        state.position = state.position.after_resize(record.replicas)
    state.session_start = state.step, state.position
    state.pending_observations = record.pending_observations
