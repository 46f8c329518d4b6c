"""Merging the weights of jobs that do not talk, by files in a folder that all of them see (local SGD, Stich 2019).

    sync-000600/job-000/       what job 0 gives at step 600: a checkpoint
    sync-000600/merged/        what all go on from: the mean of those that were there in time
    sync-000600/taken-job-000  job 0 has gone on from it

A round ends at each multiple of `every` steps, and at the last step. Nobody leads: whoever finds all there, or has
waited long enough, merges, the first of them first; the rename that publishes a merge succeeds once, so all take the
same one.
"""

import errno
import json
import logging
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.errors import CheckpointError, ConfigError
from myxtts.local_sgd.averaging import mean_of, shares_of
from myxtts.local_sgd.sync_folder import newest_merge, sync_folders, sync_step
from myxtts.training.checkpoint import restore_variables, write_state
from myxtts.training.checkpoint_files import opened_arrays, partial_of, read_arrays, read_metadata, write_checkpoint
from myxtts.training.state import TrainingState
from myxtts.training.step import is_scaled

POLL_S = 0.2
STAND_IN_S = 10.0  # how long the next one waits for a job that should merge and does not
KEPT_ROUNDS = 3

log = logging.getLogger(__name__)


class OuterOptimizer(NamedTuple):
    """The optimizer of the rounds, whose gradient is the mean change of one (DiLoCo, Douillard et al. 2023).

    Momentum is Nesterov's. A rate of 1 without momentum is plain averaging.
    """

    rate: float = 1.0
    momentum: float = 0.0

    @property
    def is_plain(self) -> bool:
        return self == OuterOptimizer()


@dataclass(frozen=True)
class SyncGroup:
    """The jobs that merge.

    Attributes:
        folder: that all of them see.
        job: which of them this run is, counted from 0.
        jobs: how many there are.
        every: steps of a round.
        timeout_s: longest time to wait for the others.
    """

    folder: Path
    job: int
    jobs: int
    every: int
    timeout_s: float


class WeightSync:
    """One job's part in the merges.

    Args:
        peers: the jobs, and which of them this one is.
        outer: of the rounds.
        optimizer: what becomes of the job's own optimizer at a merge.
        total_steps: of the run; at the last one a round ends, too.
        about: as of the run's own checkpoints.
        clock_s, sleep: time.
    """

    def __init__(
        self,
        peers: SyncGroup,
        outer: OuterOptimizer,
        optimizer: Literal["keep", "average", "reset"],
        total_steps: int,
        metadata: Mapping[str, Any],
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._peers, self._outer, self._optimizer = peers, outer, optimizer
        self._total_steps, self._about = total_steps, json.loads(json.dumps(dict(metadata)))  # tuples as they come back
        self._common = common_of(self._about)
        self._clock_s, self._sleep = clock_s, sleep

    def begin(self, state: TrainingState, fresh: bool) -> None:
        """Before the first step.

        Args:
            fresh: the run has no checkpoint yet.

        Raises:
            ConfigError: another run has used the folder as this job.
        """
        if fresh and (used := next(self._peers.folder.glob(f"sync-*/*{self._name}"), None)):
            raise ConfigError(
                f"--sync-dir {self._peers.folder} was given to a new run, but {used} is there, of another one. "
                "Give an empty folder, or --resume."
            )
        start = self._merged(state.step)
        if not self._outer.is_plain and state.audio_s == 0 and not start.exists():
            self._publish(start, [("model", state.arrays("model"))], self._common | {"parts": [], "missed": {}})

    def is_due(self, state: TrainingState) -> bool:
        """Whether a round ends at this step, and its merge was not taken yet."""
        ends = state.step % self._peers.every == 0 or state.step >= self._total_steps
        return ends and state.unmerged_s > 0

    def merge(self, state: TrainingState, stopped: Callable[[], bool]) -> bool:
        """Give the weights, wait for a merge, and take it; False where the run was asked to stop before that.

        A job that comes late takes the newest merge there is, and its step: what it has learnt since the last one is
        lost, and the log says so.

        Raises:
            CheckpointError: what another job gave is not finite, or of another network or set of jobs.
        """
        end, began_s = state.step, self._clock_s()
        newest = self._newest()
        if newest < end:
            own = self._given(end, self._peers.job)
            if not own.exists():
                write_state(own, state, self._about | {"best": None})
            newest = self._wait(end, [v.path for v in state.trained], stopped)
            if newest is None:
                return False
        parts = self._take(state, newest)
        names, waited_s = " ".join(map(str, parts)), self._clock_s() - began_s
        log.info("merged         the weights of jobs %s at step %d, after %.1f s", names, newest, waited_s)
        if self._peers.job not in parts:
            log.warning("this job came late: what it learnt since the merge before is not in what it goes on from")
        if newest > end:
            log.warning("it goes on at step %d, which the others have reached; its own was %d", newest, end)
            state.step, state.began = newest, (newest, state.position)
        state.unmerged_s = 0.0
        return True

    def _wait(self, end: int, trained: Sequence[str], stopped: Callable[[], bool]) -> int | None:
        """The step of the newest merge from this round on; None where the run was asked to stop first."""
        began_s, ready_s = self._clock_s(), math.inf
        while (newest := self._newest()) < end:
            if stopped():
                return None
            given = [job for job in range(self._peers.jobs) if self._given(end, job).exists()]
            now_s = self._clock_s()
            if self._expected().issubset(given) or now_s - began_s >= self._peers.timeout_s:
                ready_s = min(ready_s, now_s)
            if now_s - ready_s >= STAND_IN_S * given.index(self._peers.job):
                self._merge(end, given, trained)
            else:
                self._sleep(POLL_S)
        return newest

    def _expected(self) -> set[int]:
        """Whom a round waits for: who was in the last merge or has taken it; at first all."""
        last = self._merged(self._newest())
        parts = {part["job"] for part in read_metadata(last)["parts"]} if last.exists() else set()
        if not parts:
            return set(range(self._peers.jobs))
        return parts | {int(path.name.removeprefix("taken-job-")) for path in last.parent.glob("taken-job-*")}

    def _merge(self, end: int, jobs: Sequence[int], trained: Sequence[str]) -> None:
        """Publish the mean of what these jobs gave, but of damaged files."""
        abouts = {job: metadata for job in jobs if (metadata := self._readable(self._given(end, job)))}
        if not abouts:
            raise CheckpointError(
                f"nothing in {self._round(end)} can be read, so nothing can be merged. Mend that disk, and --resume."
            )
        given = [self._given(end, job) for job in abouts]
        weights = [metadata["unmerged_s"] for metadata in abouts.values()]

        def mean_of_all(group: str) -> Iterator[tuple[str, np.ndarray]]:
            return mean_of([path / f"{group}.npz" for path in given], weights)

        moved, momentum = {}, {}
        if not self._outer.is_plain:
            moved, momentum = self._outer_step(dict(mean_of_all("model")), trained)
        groups = [
            (group, ((name, array + moved[name] if name in moved else array) for name, array in mean_of_all(group)))
            for group in ("model", "averages")
            if (given[0] / f"{group}.npz").exists()
        ]
        if self._optimizer == "average":
            groups.append(("optimizer", mean_of_all("optimizer")))
        if momentum:
            groups.append(("outer", momentum.items()))
        parts = [
            {"job": job, "audio_s": metadata["unmerged_s"], "share": share}
            for (job, metadata), share in zip(abouts.items(), shares_of(weights), strict=True)
        ]
        missed = dict(read_metadata(last)["missed"]) if (last := self._merged(self._newest())).exists() else {}
        for job in set(range(self._peers.jobs)).difference(abouts):
            missed[str(job)] = missed.get(str(job), 0) + 1
        self._publish(self._merged(end), groups, self._common | {"parts": parts, "missed": missed})

    def _readable(self, given: Path) -> dict[str, Any] | None:
        """state.json of what a job gave; None where that is damaged, as if the job had not come.

        Raises:
            CheckpointError: it is of another set of jobs.
        """
        try:
            metadata = read_metadata(given)
            for archive in given.glob("*.npz"):
                with opened_arrays(archive):
                    pass
        except CheckpointError as error:
            log.error("%s is left out of the merge: %s", given, error)
            return None
        self._check_same_settings(given, common_of(metadata))
        return metadata

    def _check_same_settings(self, path: Path, common: Mapping[str, Any]) -> None:
        if name := next((name for name, value in self._common.items() if common.get(name) != value), None):
            raise CheckpointError(
                f"{path} and this run cannot be merged: they have not the same {name}. Let all jobs begin with the "
                "same --init-from and tables, with the same flags for merges, and each set of jobs with an --sync-dir "
                "of its own."
            )

    def _outer_step(self, mean: Mapping[str, np.ndarray], trained: Sequence[str]) -> tuple[dict, dict]:
        """By name: what the outer optimizer adds to the mean of the trained weights, and its momentum."""
        last = self._merged(self._newest())
        before, rate, decay = read_arrays(last / "model.npz"), self._outer.rate, self._outer.momentum
        kept = read_arrays(last / "outer.npz") if (last / "outer.npz").exists() else {}
        moved, momentum = {}, {}
        for name in trained:
            change = mean[name] - before[name]
            momentum[name] = decay * kept.get(name, np.zeros_like(change)) + change
            moved[name] = rate * (change + decay * momentum[name]) - change
        return moved, momentum

    def _publish(self, target: Path, groups: Sequence[tuple], metadata: Mapping[str, Any]) -> None:
        """Write a merge, unless another job has."""
        try:
            write_checkpoint(target, groups, metadata, by=f"-{self._name}")
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(partial_of(target.with_name(f"{target.name}-{self._name}")))

    def _take(self, state: TrainingState, end: int) -> list[int]:
        """Go on from a merge; gives the jobs that are in it."""
        merged, variables = self._merged(end), state.variables()
        metadata = read_metadata(merged)
        self._check_same_settings(merged, metadata)
        optimizer = variables.pop("optimizer")
        for group, own in variables.items():
            restore_variables(merged / f"{group}.npz", own)
        if self._optimizer == "average":
            restore_variables(merged / "optimizer.npz", optimizer)
        if self._optimizer == "reset":
            inner = state.optimizer.inner_optimizer if is_scaled(state.optimizer) else state.optimizer
            for variable in inner.variables:
                variable.assign(tf.zeros_like(variable))  # its learning rate is set at each step
        (merged.parent / f"taken-{self._name}").touch()
        parts = [part["job"] for part in metadata["parts"]]
        self._drop_past(end, leads=self._peers.job == parts[0])
        return parts

    def _drop_past(self, end: int, leads: bool) -> None:
        """Remove what this job gave before, and where it leads the rounds that nobody goes on from any more."""
        for past in self._peers.folder.glob(f"sync-*/{self._name}"):
            if sync_step(past.parent) < end:
                shutil.rmtree(past, ignore_errors=True)
        for past in sync_folders(self._peers.folder)[:-KEPT_ROUNDS] if leads else ():
            shutil.rmtree(past, ignore_errors=True)

    @property
    def _name(self) -> str:
        return f"job-{self._peers.job:03d}"

    def _newest(self) -> int:
        """Step of the newest merge; -1 where there is none."""
        merged = newest_merge(self._peers.folder)
        return sync_step(merged.parent) if merged else -1

    def _merged(self, end: int) -> Path:
        return self._round(end) / "merged"

    def _given(self, end: int, job: int) -> Path:
        return self._round(end) / f"job-{job:03d}"

    def _round(self, end: int) -> Path:
        return self._peers.folder / f"sync-{max(end, 0):06d}"


def common_of(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """What jobs that merge have in common, of the state.json of one of their checkpoints."""
    own = metadata["settings"]["local_sgd"]
    names = ("sync_every", "jobs", "outer_learning_rate", "outer_momentum", "merge_optimizer")
    return {name: metadata[name] for name in ("start", "symbols", "languages")} | {name: own[name] for name in names}
