"""Local SGD (Stich 2019): independent jobs average their weights through a shared directory.

    sync-000600/job-000/             the contribution of job 0 at step 600: a checkpoint
    sync-000600/averaged/            the mean of those that arrived in time; all jobs load it
    sync-000600/loaded-by-job-000    job 0 has loaded the average

A sync takes place at each multiple of `sync_every` steps and at the last step. There is no
coordinator. The first job that finds all contributions, or whose wait times out, averages them;
jobs with lower numbers go first. The average is published by a rename that succeeds only once, so
all jobs load the same average.
"""

import errno
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.config.flags import marked
from myxtts.config.schema import IN_SYNC, Config
from myxtts.errors import CheckpointError, ConfigError
from myxtts.local_sgd.averaging import (
    newest_average,
    normalised,
    sync_folders,
    sync_step,
    weighted_mean,
)
from myxtts.training.checkpoint_files import (
    Checkpoint,
    Participant,
    Record,
    read_record,
    write_checkpoint,
)
from myxtts.training.checkpoints import load_variables, write_state
from myxtts.training.state import TrainingState
from myxtts.training.step import unscaled

POLL_S = 0.2
# How long each job leaves the averaging to the jobs before it.
TAKEOVER_S = 10.0
KEPT_SYNCS = 3

Arrays = dict[str, np.ndarray]
Trained = Mapping[str, Sequence[str]]
"""Names of the trained variables of each group of weights, the network's first."""

log = logging.getLogger(__name__)


class OuterOptimizer(NamedTuple):
    """The outer optimizer of DiLoCo (Douillard et al. 2023), with Nesterov's momentum.

    Its gradient is the mean change of the weights between two syncs. A learning rate of 1 without
    momentum is plain averaging.
    """

    learning_rate: float = 1.0
    momentum: float = 0.0

    @property
    def is_plain_average(self) -> bool:
        return self == OuterOptimizer()


@dataclass(frozen=True)
class SyncGroup:
    """The jobs that average their weights.

    Attributes:
        folder: directory that all jobs share.
        job: number of this job, counted from 0.
        jobs: how many there are.
        sync_every: steps between two syncs.
        timeout_s: longest time to wait for the other jobs.
    """

    folder: Path
    job: int
    jobs: int
    sync_every: int
    timeout_s: float


class WeightSync:
    """The syncs of one job.

    Args:
        sync_optimizer: what happens to the job's own (inner) optimizer state at a sync.
        total_steps: length of the run; the last step also syncs.
        record: of the run's checkpoints.
        clock_s, sleep: time, for tests.
    """

    def __init__(
        self,
        group: SyncGroup,
        outer_optimizer: OuterOptimizer,
        sync_optimizer: Literal["keep", "average", "reset"],
        total_steps: int,
        record: Record,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._group = group
        self._outer_optimizer = outer_optimizer
        self._sync_optimizer = sync_optimizer
        self._total_steps = total_steps
        self._record = record
        self._common = common_settings(record)
        self._clock_s = clock_s
        self._sleep = sleep

    @classmethod
    def of_run(cls, config: Config, total_steps: int, record: Record) -> "WeightSync | None":
        """Return the syncs of a run; None if it is not one of several jobs."""
        settings = config.local_sgd
        if not settings.sync_every or settings.sync_dir is None:
            return None
        group = SyncGroup(
            Path(settings.sync_dir),
            settings.job,
            settings.jobs,
            settings.sync_every,
            settings.sync_timeout,
        )
        outer_optimizer = OuterOptimizer(settings.outer_learning_rate, settings.outer_momentum)
        return cls(group, outer_optimizer, settings.sync_optimizer, total_steps, record)

    def prepare(self, state: TrainingState, new_run: bool, resumes: bool = False) -> None:
        """Check the shared directory, and publish the weights that an outer optimizer starts from.

        Args:
            new_run: whether the run has no checkpoint yet.
            resumes: it may have been killed in its first sync, before its first checkpoint; then it
                contributes the same weights again.

        Raises:
            ConfigError: another run has used the directory under this job number.
        """
        if new_run:
            self._check_unused(resumes)
        start = self._averaged(state.step)
        if not self._outer_optimizer.is_plain_average and state.audio_s == 0 and not start.exists():
            groups = [(group, state.arrays(group)) for group in state.weight_groups]
            self._publish(start, groups, self._record)

    def _check_unused(self, resumes: bool) -> None:
        """Raise ConfigError if the directory has traces of another run with this job number."""
        first_step = min(self._group.sync_every, self._total_steps)
        for trace in self._group.folder.glob(f"sync-*/*{self._name}"):
            # A kill leaves hidden files, which are written anew.
            is_own = resumes and trace.parent == self._folder(first_step)
            if not is_own and not trace.name.startswith("."):
                raise ConfigError(
                    f"--sync-dir {self._group.folder} was given to a new run, but it holds {trace}"
                    " of another run. Give an empty folder; or --resume, if it is of this run,"
                    " which was killed in its first sync."
                )

    def is_due(self, state: TrainingState) -> bool:
        """Return whether this step ends with a sync that has not taken place yet."""
        at_end = state.step % self._group.sync_every == 0 or state.step >= self._total_steps
        return at_end and state.audio_s_since_sync > 0

    def sync(self, state: TrainingState, stop_requested: Callable[[], bool]) -> bool:
        """Contribute the weights, wait for the average and load it.

        A late job loads the newest average and continues at its step. Its own updates since the
        last sync are discarded, with a warning.

        Returns:
            False if a stop was requested first.

        Raises:
            CheckpointError: a contribution is not finite, or comes from another network or another
                group of jobs.
        """
        step = state.step
        began_s = self._clock_s()
        newest = self._newest_step()
        if newest < step:
            contribution = self._contribution(step, self._group.job)
            # A run that was stopped in its sync has contributed already.
            if not contribution.exists():
                write_state(contribution, state, self._record)
            trained = {group.name: [v.path for v in group.trained] for group in state.groups}
            awaited = self._wait_for_average(step, trained, stop_requested)
            if awaited is None:
                return False
            newest = awaited
        participants = self._load_average(state, newest)
        log.info(
            "sync           average of jobs %s at step %d, after %.1f s",
            " ".join(map(str, participants)),
            newest,
            self._clock_s() - began_s,
        )
        if self._group.job not in participants:
            log.warning("this job was late: its updates since the last sync were discarded")
        if newest > step:
            log.warning(
                "training continues at step %d, as in the other jobs; this job was at step %d",
                newest,
                step,
            )
            state.step = newest
            state.session_start = (newest, state.position)
        state.audio_s_since_sync = 0.0
        return True

    def _wait_for_average(
        self, step: int, trained: Trained, stop_requested: Callable[[], bool]
    ) -> int | None:
        """Return the step of the newest average, at least `step`; None if a stop came first."""
        began_s = self._clock_s()
        ready_s = math.inf
        while (newest := self._newest_step()) < step:
            if stop_requested():
                return None
            present = [
                job for job in range(self._group.jobs) if self._contribution(step, job).exists()
            ]
            now_s = self._clock_s()
            # One job averages: the first that is present, or the next one 10 s later if that died.
            if self._expected_jobs().issubset(present) or now_s - began_s >= self._group.timeout_s:
                ready_s = min(ready_s, now_s)
            if now_s - ready_s >= TAKEOVER_S * present.index(self._group.job):
                self._average(step, present, trained)
            else:
                self._sleep(POLL_S)
        return newest

    def _expected_jobs(self) -> set[int]:
        """Return the jobs that took part in the last sync or loaded its average; at first all."""
        last = self._averaged(self._newest_step())
        participants: set[int] = set()
        if last.exists():
            participants = {entry.job for entry in read_record(last).participants}
        if not participants:
            return set(range(self._group.jobs))
        loaded = last.parent.glob("loaded-by-job-*")
        return participants | {int(path.name.removeprefix("loaded-by-job-")) for path in loaded}

    def _average(self, step: int, jobs: Sequence[int], trained: Trained) -> None:
        """Publish the mean of these jobs' contributions; damaged ones are left out."""
        contributions: dict[int, Checkpoint] = {}
        for job in jobs:
            contribution = self._read_contribution(self._contribution(step, job))
            if contribution is not None:
                contributions[job] = contribution
        if not contributions:
            raise CheckpointError(
                f"no contribution in {self._folder(step)} can be read, so there is nothing to"
                " average. Repair that disk, then resume with --resume."
            )
        weights = [entry.record.audio_s_since_sync for entry in contributions.values()]
        participants = tuple(
            Participant(job=job, audio_s=weight, coefficient=coefficient)
            for job, weight, coefficient in zip(
                contributions, weights, normalised(weights), strict=True
            )
        )
        last = self._averaged(self._newest_step())
        missed_syncs = dict(read_record(last).missed_syncs) if last.exists() else {}
        for job in set(range(self._group.jobs)).difference(contributions):
            missed_syncs[job] = missed_syncs.get(job, 0) + 1
        self._publish(
            self._averaged(step),
            self._averaged_groups(list(contributions.values()), weights, trained),
            self._record.model_copy(
                update={"step": step, "participants": participants, "missed_syncs": missed_syncs}
            ),
        )

    def _averaged_groups(
        self, contributions: Sequence[Checkpoint], weights: Sequence[float], trained: Trained
    ) -> Iterator[tuple[str, Iterable[tuple[str, np.ndarray]]]]:
        """Yield each group of an average, with its arrays."""

        def mean(group: str) -> Iterator[tuple[str, np.ndarray]]:
            return weighted_mean([(each, group) for each in contributions], weights)

        change: Arrays = {}
        momentum: Arrays = {}
        if not self._outer_optimizer.is_plain_average:
            for group, names in trained.items():
                group_change, group_momentum = self._outer_step(group, dict(mean(group)), names)
                change |= group_change
                momentum |= group_momentum
        for group in (*trained, "averages"):
            if group in contributions[0].groups:
                # The averages of trained variables move as far as the variables.
                yield (
                    group,
                    ((name, _moved(array, change.get(name))) for name, array in mean(group)),
                )
        if self._sync_optimizer == "average":
            yield "optimizer", mean("optimizer")
        if momentum:
            yield "outer", momentum.items()

    def _read_contribution(self, folder: Path) -> Checkpoint | None:
        """Read a contribution; None if it is damaged, as if the job were absent.

        Raises:
            CheckpointError: it comes from another group of jobs.
        """
        try:
            contribution = Checkpoint.read(folder)
            for group in contribution.groups:
                with contribution.opened(group):
                    pass
        except CheckpointError as error:
            log.error("%s is left out of the average: %s", folder, error)
            return None
        self._check_same_settings(contribution)
        return contribution

    def _check_same_settings(self, checkpoint: Checkpoint) -> None:
        common = common_settings(checkpoint.record)
        for name, value in self._common.items():
            if common[name] != value:
                raise CheckpointError(
                    f"{checkpoint.path} and this run cannot be averaged: they differ in {name}."
                    " Start all jobs with the same --init-from, vocabulary and sync flags, and give"
                    " each group of jobs a --sync-dir of its own."
                )

    def _outer_step(
        self, group: str, mean: Mapping[str, np.ndarray], trained: Sequence[str]
    ) -> tuple[Arrays, Arrays]:
        """Return what is added to the mean of each trained variable, and the momentum, by name."""
        last = Checkpoint.read(self._averaged(self._newest_step()))
        previous = last.arrays(group)
        previous_momentum = last.arrays("outer") if "outer" in last.groups else {}
        learning_rate, decay = self._outer_optimizer
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
        """Load an average into the state; return the jobs that took part in it."""
        average = Checkpoint.read(self._averaged(step))
        groups = state.variables()
        self._check_same_settings(average)
        if self._sync_optimizer != "average":
            del groups["optimizer"]
        load_variables(average, groups)
        if self._sync_optimizer == "reset":
            # Zero is also assigned to the learning rate, which is set at each step.
            for trained in state.groups:
                for variable in unscaled(trained.optimizer).variables:
                    variable.assign(tf.zeros_like(variable))
        (average.path.parent / f"loaded-by-{self._name}").touch()
        participants = [entry.job for entry in average.record.participants]
        self._remove_past(step, is_first=self._group.job == participants[0])
        return participants

    def _remove_past(self, step: int, is_first: bool) -> None:
        """Remove this job's past contributions; the first participant also removes old syncs."""
        for contribution in self._group.folder.glob(f"sync-*/{self._name}"):
            if sync_step(contribution.parent) < step:
                shutil.rmtree(contribution, ignore_errors=True)
        if is_first:
            for folder in sync_folders(self._group.folder)[:-KEPT_SYNCS]:
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def _name(self) -> str:
        return f"job-{self._group.job:03d}"

    def _newest_step(self) -> int:
        """Return the step of the newest average; -1 if there is none."""
        newest = newest_average(self._group.folder)
        return sync_step(newest.parent) if newest else -1

    def _averaged(self, step: int) -> Path:
        return self._folder(step) / "averaged"

    def _contribution(self, step: int, job: int) -> Path:
        return self._folder(step) / f"job-{job:03d}"

    def _folder(self, step: int) -> Path:
        return self._group.folder / f"sync-{max(step, 0):06d}"


def common_settings(record: Record) -> dict[str, Any]:
    """Return what all jobs of a group have in common."""
    common = {"start": record.start, "symbols": record.symbols, "languages": record.languages}
    return common | {setting.name: setting.of(record.settings) for setting in marked(IN_SYNC)}


def _moved(array: np.ndarray, change: np.ndarray | None) -> np.ndarray:
    return array if change is None else array + change
