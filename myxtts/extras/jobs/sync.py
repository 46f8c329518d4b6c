"""Local SGD (Stich 2019): independent jobs average their weights through a shared directory.

    sync-000600/job-000/             the contribution of job 0 at step 600: a checkpoint
    sync-000600/averaged/            the mean of those that arrived in time; all jobs load it
    sync-000600/loaded-by-job-000    job 0 has loaded the average

A sync takes place at each multiple of `sync_every` steps and at the last step. There is no
coordinator. The first job that finds all contributions, or whose wait times out, averages them;
jobs with lower numbers go first. Fewer jobs than the quorum do not average, so that two groups that
do not see each other cannot train apart. The average is published by a rename that succeeds only
once, so all jobs load the same average.

The outer optimizer is DiLoCo's (Douillard et al. 2023), with Nesterov's momentum. Its
gradient is the mean change of the weights between two syncs. A learning rate of 1 without momentum
is plain averaging.
"""

import errno
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.base.errors import CheckpointError, ConfigError, PeerLost
from myxtts.base.progress import Observation, without
from myxtts.checkpoints.files import (
    AVERAGES,
    MODEL,
    OPTIMIZER,
    Checkpoint,
    Participant,
    Record,
    read_record,
    write_checkpoint,
)
from myxtts.checkpoints.variables import load_variables
from myxtts.config.flags import marked
from myxtts.config.schema import IN_SYNC
from myxtts.extras.jobs import merge
from myxtts.extras.jobs.mean import normalised, weighted_mean
from myxtts.extras.jobs.merge import newest_average
from myxtts.run.hooks import StepEnd
from myxtts.run.optimizer import unscaled
from myxtts.run.saving import Checkpoints, write_state
from myxtts.run.schedule import due_parts, periods_of
from myxtts.run.setup import TrainingSetup
from myxtts.run.state import TrainingState
from myxtts.run.stop_request import StopRequest, stop_on_signals

POLL_S = 0.2
# A job waits this long for each job before it to average; that one may have died.
TAKEOVER_S = 10.0
KEPT_SYNCS = 3
OUTER = "outer"  # group of the momentum of the outer optimizer

Arrays = dict[str, np.ndarray]

log = logging.getLogger(__name__)


class WeightSync:
    """The syncs of one job, which the settings in the record of its checkpoints describe.

    The last of all steps also syncs. Tests give a clock.
    """

    def __init__(
        self,
        record: Record,
        total_steps: int,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        settings = record.settings.local_sgd
        self._settings = settings
        self._sync_dir = Path(settings.sync_dir or "")
        self._name = f"job-{settings.job:03d}"
        self._is_plain_average = (settings.outer_learning_rate, settings.outer_momentum) == (1, 0)
        self._quorum = settings.sync_quorum or settings.jobs // 2 + 1
        self._total_steps = total_steps
        self._record = record
        self._clock_s = clock_s
        self._sleep = sleep

    def prepare(self, state: TrainingState, new_run: bool, resumes: bool = False) -> None:
        """Check the shared directory, and publish the weights that an outer optimizer starts from.

        Raises ConfigError if a new run, without a checkpoint, finds that another one has used the
        directory under this job number. One that resumes may have been killed in its first sync,
        before its first checkpoint; then it contributes the same weights again.
        """
        first_step = min(self._settings.sync_every, self._total_steps)
        for trace in self._sync_dir.glob(f"sync-*/*{self._name}"):
            # A kill leaves hidden files, which are written anew.
            is_own = resumes and trace.parent == self._folder(first_step)
            if new_run and not is_own and not trace.name.startswith("."):
                raise ConfigError(
                    f"--sync-dir {self._sync_dir} was given to a new run, but it holds {trace} of"
                    " another run. Give an empty folder; or --resume, if it is of this run."
                )
        start = self._averaged(state.step)
        if not self._is_plain_average and state.audio_s == 0 and not start.exists():
            self._publish(start, [(MODEL, state.arrays(MODEL))], self._record)

    def is_due(self, state: TrainingState) -> bool:
        """Return whether this step ends with a sync that has not taken place yet."""
        at_end = state.step % self._settings.sync_every == 0 or state.step >= self._total_steps
        return at_end and state.audio_s_since_sync > 0

    # The weights are written as a contribution, and the average is awaited, or made by this job.
    # Then it is loaded. A job that comes after the average exists contributes nothing: it loads the
    # newest one and continues at its step, without its own work since the last sync.
    def sync(self, state: TrainingState, stop_requested: Callable[[], bool]) -> bool:
        """Contribute the weights, wait for the average and load it.

        Returns false if a stop was requested first. Raises PeerLost if fewer jobs than the quorum
        arrived in time, and CheckpointError if a contribution is not finite, or comes from another
        network or another group of jobs.
        """
        step = state.step
        began_s = self._clock_s()
        contribution = self._folder(step) / self._name
        # A run that was stopped in its sync has contributed already.
        if self._newest_step() < step and not contribution.exists():
            write_state(contribution, state, self._record)
        trained = [v.path for v in state.trained]
        newest = self._wait_for_average(step, trained, stop_requested)
        if newest is None:
            return False
        participants = self._load_average(state, newest)
        jobs, waited_s = " ".join(map(str, participants)), self._clock_s() - began_s
        line = "sync           average of jobs %s at step %d, after %.1f s"
        log.info(line, jobs, newest, waited_s)
        if self._settings.job not in participants:
            line = (
                "this job was late: it goes on at step %d without its updates since the sync; if it"
                " often is, raise --sync-timeout"
            )
            log.warning(line, newest)
        if newest > step:
            state.step = newest
            state.session_start = (newest, state.position)
        state.audio_s_since_sync = 0.0
        return True

    # The folder is polled. Below the quorum a job waits until the timeout ends the run. With the
    # quorum it waits for all expected jobs, or for the timeout. From then on, the first job
    # averages at once, and each further one only if those before it have not within TAKEOVER_S
    # each.
    def _wait_for_average(
        self, step: int, trained: Sequence[str], stop_requested: Callable[[], bool]
    ) -> int | None:
        """Return the step of the newest average, at least `step`; None if a stop came first."""
        began_s = self._clock_s()
        warn_s = began_s + TAKEOVER_S
        ready_s = math.inf
        while (newest := self._newest_step()) < step:
            if stop_requested():
                return None
            jobs = range(self._settings.jobs)
            present = [job for job in jobs if (self._folder(step) / f"job-{job:03d}").exists()]
            now_s = self._clock_s()
            is_late = now_s - began_s >= self._settings.sync_timeout
            if len(present) < self._quorum:
                found = f"{len(present)} of {self._settings.jobs} jobs have arrived at step {step}"
                found += f" in {self._sync_dir}, fewer than the quorum of {self._quorum}"
                if is_late:
                    raise PeerLost(
                        f"{found} (--sync-quorum), within {self._settings.sync_timeout:g} s. Check"
                        " that all jobs run and see the same folder, and resume with --resume."
                    )
                if now_s >= warn_s:
                    log.warning("%s; the others may be late, or have another --sync-dir", found)
                    warn_s = math.inf
            elif is_late or self._expected_jobs().issubset(present):
                ready_s = min(ready_s, now_s)
            if now_s - ready_s >= TAKEOVER_S * present.index(self._settings.job):
                self._average(step, present, trained)
            else:
                self._sleep(POLL_S)
        return newest

    def _expected_jobs(self) -> set[int]:
        """Return the jobs that took part in the last sync or loaded its average; at first all."""
        last = self._averaged(self._newest_step())
        if not last.exists() or not (participants := read_record(last).participants):
            return set(range(self._settings.jobs))
        loaded = last.parent.glob("loaded-by-job-*")
        jobs = {int(path.name.removeprefix("loaded-by-job-")) for path in loaded}
        return jobs.union(entry.job for entry in participants)

    # Contributions that cannot be read are left out; those of other settings are an error. Weights
    # of the mean are the seconds of audio since the last sync. The record counts for each job the
    # syncs that it missed.
    def _average(self, step: int, jobs: Sequence[int], trained: Sequence[str]) -> None:
        """Publish the mean of these jobs' contributions; damaged ones are left out."""
        contributions: dict[int, Checkpoint] = {}
        for job in jobs:
            folder = self._folder(step) / f"job-{job:03d}"
            try:
                contribution = Checkpoint.read(folder)
                for group in contribution.groups:
                    with contribution.opened(group):
                        pass
            except CheckpointError as error:
                log.error("%s is left out of the average: %s", folder, error)
                continue
            self._check_same_settings(contribution)
            contributions[job] = contribution
        if not contributions:
            raise CheckpointError(
                f"no contribution in {self._folder(step)} can be read, so there is nothing to"
                " average. Repair that disk, then resume with --resume."
            )
        weights = [entry.record.audio_s_since_sync for entry in contributions.values()]
        shares = zip(contributions, weights, normalised(weights), strict=True)
        participants = tuple(
            Participant(job=job, audio_s=audio_s, coefficient=coefficient)
            for job, audio_s, coefficient in shares
        )
        last = self._averaged(self._newest_step())
        missed_syncs = dict(read_record(last).missed_syncs) if last.exists() else {}
        for job in set(range(self._settings.jobs)).difference(contributions):
            missed_syncs[job] = missed_syncs.get(job, 0) + 1
        update = {"step": step, "participants": participants, "missed_syncs": missed_syncs}
        groups = self._averaged_groups(list(contributions.values()), weights, trained)
        self._publish(self._averaged(step), groups, self._record.model_copy(update=update))

    def _averaged_groups(
        self, contributions: Sequence[Checkpoint], weights: Sequence[float], trained: Sequence[str]
    ) -> Iterator[tuple[str, Iterable[tuple[str, np.ndarray]]]]:
        """Yield each group of an average, with its arrays."""

        def mean(group: str) -> Iterator[tuple[str, np.ndarray]]:
            return weighted_mean([(each, group) for each in contributions], weights)

        change: Arrays = {}
        momentum: Arrays = {}
        if not self._is_plain_average:
            change, momentum = self._outer_step(dict(mean(MODEL)), trained)
        for group in (MODEL, AVERAGES):
            if group in contributions[0].groups:
                # The averages move with the trained variables, which they would lag behind.
                yield (
                    group,
                    ((name, _moved(array, change.get(name))) for name, array in mean(group)),
                )
        if self._settings.sync_optimizer == "average":
            yield OPTIMIZER, mean(OPTIMIZER)
        if momentum:
            yield OUTER, momentum.items()

    def _check_same_settings(self, checkpoint: Checkpoint) -> None:
        """Raise CheckpointError if a contribution or average is of another group of jobs."""
        common = common_settings(checkpoint.record)
        for name, value in common_settings(self._record).items():
            if common[name] != value:
                raise CheckpointError(
                    f"{checkpoint.path} and this run cannot be averaged: they differ in {name}."
                    " Start all jobs alike, and give each group of jobs a --sync-dir of its own."
                )

    def _outer_step(
        self, mean: Mapping[str, np.ndarray], trained: Sequence[str]
    ) -> tuple[Arrays, Arrays]:
        """Return what is added to the mean of each trained variable, and the momentum, by name."""
        last = Checkpoint.read(self._averaged(self._newest_step()))
        previous = last.arrays(MODEL)
        previous_momentum = last.arrays(OUTER) if OUTER in last.groups else {}
        learning_rate = self._settings.outer_learning_rate
        decay = self._settings.outer_momentum
        outer_change: Arrays = {}
        momentum: Arrays = {}
        for name in trained:
            change = mean[name] - previous[name]
            momentum[name] = decay * previous_momentum.get(name, np.zeros_like(change)) + change
            outer_change[name] = learning_rate * (change + decay * momentum[name]) - change
        return outer_change, momentum

    def _publish(self, target: Path, groups: Iterable[tuple], record: Record) -> None:
        """Write an average, unless another job was faster."""
        try:
            write_checkpoint(target, groups, record, by=f"-{self._name}")
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _load_average(self, state: TrainingState, step: int) -> list[int]:
        """Load an average into the state, and remove what it replaces; return its participants."""
        average = Checkpoint.read(self._averaged(step))
        groups = state.variables()
        self._check_same_settings(average)
        if self._settings.sync_optimizer != "average":
            del groups[OPTIMIZER]
        load_variables(average, groups)
        if self._settings.sync_optimizer == "reset":
            # Zero is also assigned to the learning rate, which is set at each step.
            for variable in unscaled(state.optimizer).variables:
                variable.assign(tf.zeros_like(variable))
        (average.path.parent / f"loaded-by-{self._name}").touch()
        for contribution in self._sync_dir.glob(f"sync-*/{self._name}"):
            if merge.sync_step(contribution.parent) < step:
                shutil.rmtree(contribution, ignore_errors=True)
        participants = [entry.job for entry in average.record.participants]
        if self._settings.job == participants[0]:
            for folder in merge.sync_folders(self._sync_dir)[:-KEPT_SYNCS]:
                shutil.rmtree(folder, ignore_errors=True)
        return participants

    def _newest_step(self) -> int:
        """Return the step of the newest average; -1 if there is none."""
        newest = newest_average(self._sync_dir)
        return merge.sync_step(newest.parent) if newest else -1

    def _averaged(self, step: int) -> Path:
        return self._folder(step) / "averaged"

    def _folder(self, step: int) -> Path:
        return self._sync_dir / f"sync-{max(step, 0):06d}"


class SyncWeights:
    """The hook that averages the weights with those of other jobs, and asks for a checkpoint."""

    pause_kind = "syncs"

    def __init__(self, weight_sync: WeightSync, checkpoints: Checkpoints):
        self._weight_sync, self._checkpoints = weight_sync, checkpoints

    def is_due(self, end: StepEnd) -> bool:
        return self._weight_sync.is_due(end.state)

    def __call__(self, end: StepEnd) -> None:
        # A sync removes the previous contributions, which a job needs that is killed and resumes
        # from a previous checkpoint.
        self._checkpoints.wait()
        end.owes_sync = not self._weight_sync.sync(end.state, end.stop.due)
        end.save |= not end.owes_sync


def make_hook(
    setup: TrainingSetup, checkpoints: Checkpoints, request: StopRequest
) -> SyncWeights | None:
    """Return the hook of a run with --sync-every, after the sync that it may owe; else None."""
    start, schedule = setup.run.start, setup.schedule
    if not setup.config.local_sgd.sync_every:
        return None
    weight_sync = WeightSync(setup.record, schedule.total_steps)
    resumes = setup.config.run.resume
    weight_sync.prepare(setup.state, new_run=start.resumed is None, resumes=resumes)
    finish_pending_sync(weight_sync, setup, checkpoints, request)
    return SyncWeights(weight_sync, checkpoints)


# A run that was stopped within a sync has saved its checkpoint before it. The sync is done now,
# before the first step. If it loads the average, the step's observations are of that average, and a
# checkpoint is saved at once, so that the sync is never repeated.
def finish_pending_sync(
    weight_sync: WeightSync, setup: TrainingSetup, checkpoints: Checkpoints, request: StopRequest
) -> None:
    """Do the sync that a stopped run owes, if it owes one; the average is then observed."""
    state, owed_step = setup.state, setup.state.step
    with stop_on_signals(request):
        if not weight_sync.is_due(state) or not weight_sync.sync(state, request.due):
            return
    is_last = state.step >= setup.schedule.total_steps
    state.pending_observations = without(state.pending_observations, owed_step)
    if parts := due_parts(periods_of(setup.config.run), owed_step, is_last):
        state.pending_observations += (Observation(state.step, parts),)
    checkpoints.save(state)
    checkpoints.wait()


def common_settings(record: Record) -> dict[str, Any]:
    """Return what all jobs of a group have in common."""
    common = {"start": record.start, "symbols": record.symbols, "languages": record.languages}
    return common | {setting.name: setting.of(record.settings) for setting in marked(IN_SYNC)}


def _moved(array: np.ndarray, change: np.ndarray | None) -> np.ndarray:
    if change is None:
        return array
    return array + change
