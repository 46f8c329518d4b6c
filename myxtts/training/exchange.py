"""Merging the weights of jobs that do not talk, by files in a folder that all of them see (local SGD, Stich 2019).

    round-0003/job-000/       what job 0 gives: a checkpoint
    round-0003/merged/        what all go on from: the mean of those that were there in time
    round-0003/taken-job-000  job 0 has gone on from it

A round ends at each multiple of `every` steps, and at the last step. Nobody leads: whoever finds all there, or has
waited long enough, merges, the first of them first; the rename that publishes a merge succeeds once, so all take the
same one.
"""

import errno
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
from myxtts.training.archive import partial_of, read_about, read_arrays, write_checkpoint
from myxtts.training.averaging import mean_of, shares_of
from myxtts.training.checkpoint import restore_variables, write_state
from myxtts.training.state import TrainingState
from myxtts.training.step import is_scaled

POLL_S = 0.2
STAND_IN_S = 10.0  # how long the next one waits for a job that should merge and does not
KEPT_ROUNDS = 3

log = logging.getLogger(__name__)


class Outer(NamedTuple):
    """The optimizer of the rounds, whose gradient is the mean change of one (DiLoCo, Douillard et al. 2023).

    Momentum is Nesterov's. A rate of 1 without momentum is plain averaging.
    """

    rate: float = 1.0
    momentum: float = 0.0

    @property
    def is_plain(self) -> bool:
        return self == Outer()


@dataclass(frozen=True)
class Place:
    """Which of the jobs this one is.

    Attributes:
        folder: that all of them see.
        job: counted from 0.
        jobs: how many there are.
        every: steps of a round.
        timeout_s: longest time to wait for the others.
    """

    folder: Path
    job: int
    jobs: int
    every: int
    timeout_s: float


class Exchange:
    """One job's part in the merges.

    Args:
        place: of this job among the others.
        outer: of the rounds.
        optimizer: what becomes of the job's own optimizer at a merge.
        total_steps: of the run; at the last one a round ends, too.
        about: as of the run's own checkpoints.
        clock_s, sleep: time.
    """

    def __init__(
        self,
        place: Place,
        outer: Outer,
        optimizer: Literal["keep", "average", "reset"],
        total_steps: int,
        about: Mapping[str, Any],
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._place, self._outer, self._optimizer = place, outer, optimizer
        self._total_steps, self._about = total_steps, dict(about)
        self._clock_s, self._sleep = clock_s, sleep

    def begin(self, state: TrainingState, fresh: bool) -> None:
        """Before the first step.

        Args:
            fresh: the run has no checkpoint yet.

        Raises:
            ConfigError: another run has used the folder as this job.
        """
        if fresh and (used := next(self._place.folder.glob(f"round-*/*{self._name}"), None)):
            raise ConfigError(
                f"--exchange {self._place.folder} was given to a new run, but {used} is there, of another one. "
                "Give an empty folder, or --resume."
            )
        start = self._merged(state.step // self._place.every)
        if not self._outer.is_plain and state.audio_s == 0 and not start.exists():
            weights = state.variables()["model"]
            arrays = ((name, state.replicas.parts(v)[0].numpy()) for name, v in weights.items())
            self._publish(start, [("model", arrays)], {"step": state.step, "parts": []})

    def is_due(self, state: TrainingState) -> bool:
        """Whether a round ends at this step, and its merge was not taken yet."""
        ends = state.step % self._place.every == 0 or state.step >= self._total_steps
        return ends and state.audio_s > 0

    def merge(self, state: TrainingState, stopped: Callable[[], bool]) -> bool:
        """Give the weights, wait for a merge, and take it; False where the run was asked to stop before that.

        A job that comes late takes the newest merge there is, and its step: what it has learnt since the last one is
        lost, and the log says so.

        Raises:
            CheckpointError: what another job gave is damaged, not finite or of another network or start.
        """
        number, began_s = math.ceil(state.step / self._place.every), self._clock_s()
        newest = self._newest()
        if newest < number:
            if not self._given(number, self._place.job).exists():
                write_state(self._given(number, self._place.job), state, self._about | {"best": None})
            newest = self._wait(number, [v.path for v in state.trained], stopped)
            if newest is None:
                return False
        parts = self._take(state, newest)
        waited_s = self._clock_s() - began_s
        log.info("round %-8d jobs %s merged, %.1f s", newest, " ".join(map(str, parts)), waited_s)
        if self._place.job not in parts or newest > number:
            log.warning("this job came late: its last %s steps are not in what it goes on from", self._place.every)
        state.step = max(state.step, min(newest * self._place.every, self._total_steps))
        state.audio_s = 0.0
        return True

    def _wait(self, number: int, trained: Sequence[str], stopped: Callable[[], bool]) -> int | None:
        """The number of the newest merge from this round on; None where the run was asked to stop first."""
        began_s, ready_s = self._clock_s(), math.inf
        while (newest := self._newest()) < number:
            if stopped():
                return None
            given = [job for job in range(self._place.jobs) if self._given(number, job).exists()]
            now_s = self._clock_s()
            if self._expected(number).issubset(given) or now_s - began_s >= self._place.timeout_s:
                ready_s = min(ready_s, now_s)
            if now_s - ready_s >= STAND_IN_S * given.index(self._place.job):
                self._merge(number, given, trained)
            else:
                self._sleep(POLL_S)
        return newest

    def _expected(self, number: int) -> set[int]:
        """Whom a round waits for: who was in the last merge or has taken it; at first all."""
        last = self._merged(self._newest())
        parts = {part["job"] for part in read_about(last)["parts"]} if last.exists() else set()
        if not parts:
            return set(range(self._place.jobs))
        return parts | {int(path.name.removeprefix("taken-job-")) for path in last.parent.glob("taken-job-*")}

    def _merge(self, number: int, jobs: Sequence[int], trained: Sequence[str]) -> None:
        """Publish the mean of what these jobs gave."""
        given = [self._given(number, job) for job in jobs]
        abouts = [read_about(path) for path in given]
        for path, about in zip(given, abouts, strict=True):
            if about["start"] != self._about["start"]:
                raise CheckpointError(
                    f"{path} has another start than this run: their weights do not go together. Let all jobs begin "
                    "with the same --init-from, and give each set of jobs an --exchange of its own."
                )
        weights = [about["audio_s"] for about in abouts]

        def mean_of_all(group: str) -> Iterator[tuple[str, np.ndarray]]:
            return mean_of([path / f"{group}.npz" for path in given], weights)

        moved, momentum = (
            self._outer_step(dict(mean_of_all("model")), trained) if not self._outer.is_plain else ({}, {})
        )
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
            {"job": job, "step": about["step"], "audio_s": about["audio_s"], "share": share}
            for job, about, share in zip(jobs, abouts, shares_of(weights), strict=True)
        ]
        self._publish(self._merged(number), groups, {"step": max(about["step"] for about in abouts), "parts": parts})

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

    def _publish(self, target: Path, groups: Sequence[tuple], about: Mapping[str, Any]) -> None:
        """Write a merge, unless another job has."""
        try:
            write_checkpoint(target, groups, about, by=f"-{self._name}")
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(partial_of(target.with_name(f"{target.name}-{self._name}")))

    def _take(self, state: TrainingState, number: int) -> list[int]:
        """Go on from a merge; gives the jobs that are in it."""
        merged, variables = self._merged(number), state.variables()
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
        for past in self._place.folder.glob(f"round-*/{self._name}"):
            if _number(past.parent) < number:
                shutil.rmtree(past)
        parts = [part["job"] for part in read_about(merged)["parts"]]
        if self._place.job == parts[0]:
            for past in self._rounds():
                if _number(past) <= number - KEPT_ROUNDS:
                    shutil.rmtree(past, ignore_errors=True)
        return parts

    @property
    def _name(self) -> str:
        return f"job-{self._place.job:03d}"

    def _rounds(self) -> list[Path]:
        return [path for path in self._place.folder.glob("round-*") if path.name.removeprefix("round-").isdecimal()]

    def _newest(self) -> int:
        """Number of the newest merge; -1 where there is none."""
        return max((_number(path) for path in self._rounds() if (path / "merged").exists()), default=-1)

    def _merged(self, number: int) -> Path:
        return self._place.folder / f"round-{max(number, 0):04d}" / "merged"

    def _given(self, number: int, job: int) -> Path:
        return self._place.folder / f"round-{number:04d}" / f"job-{job:03d}"


def _number(folder: Path) -> int:
    return int(folder.name.removeprefix("round-"))
