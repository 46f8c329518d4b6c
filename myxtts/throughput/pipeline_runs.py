"""Runs of all stages together in the training loop: untraced as in training, or with the times of
each stage.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from myxtts.batch import Batch
from myxtts.clock import FIRST_STEP, MODEL, Clock, Span, Times
from myxtts.data.batch_plan import Pass
from myxtts.data.pipeline import Pipeline, ProducedBatch
from myxtts.throughput.analysis import TracedRun
from myxtts.throughput.isolated_stages import profile_learning_rate
from myxtts.throughput.profiled_run import WARM_UP, ProfiledRun
from myxtts.training import loop
from myxtts.training.checkpoints import save_nothing
from myxtts.training.hooks import StepEnd
from myxtts.training.schedule import Rates
from myxtts.training.step import Step
from myxtts.training.stop_request import StopRequest


def run_untraced(run: ProfiledRun, pipeline: Pipeline, steps: int) -> float:
    """Return the seconds of the measured steps in the training loop."""
    with pipeline.open_feed(Pass()) as feed:
        return _train(run, run.step, feed, steps, len(pipeline.producers))["step_s"] * steps


def run_traced(run: ProfiledRun, pipeline: Pipeline, steps: int) -> TracedRun:
    """Run the same steps, wait for each, and record the times of all stages."""
    recorder = SpanRecorder(run.step)
    with pipeline.open_feed(Pass()) as feed:
        metrics = _train(run, recorder, recorder.recorded(feed), steps, len(pipeline.producers))
    start_s, end_s = np.array(recorder.start_s[-steps:]), np.array(recorder.end_s[-steps - 1 :])
    return TracedRun(
        duration_s=metrics["step_s"] * steps,
        wait_s=metrics["wait_s"] * steps,
        blocked_s=metrics["blocked_s"] * steps,
        busy_s=float((end_s[1:] - start_s).sum()),
        step_s=np.diff(end_s),
        spans=list(recorder.spans()),
    )


def _train(
    run: ProfiledRun, step: loop.StepFunction, feed: loop.BatchFeed, steps: int, producers: int
) -> dict[str, float]:
    """Return the loop's metrics of `steps` steps after WARM_UP of them."""
    state, collect, clock = run.setup.state, CollectMetrics(), Clock(producers=producers)
    # The loop excludes its first step from all reports, so the second call begins with the last
    # step of the warm-up.
    for total_steps in (state.step + WARM_UP - 1, state.step + WARM_UP + steps):
        schedule = replace(
            run.setup.schedule,
            total_steps=total_steps,
            log_every=sys.maxsize,  # one report, at the end
            checkpoint_every=0,
            learning_rate=profile_learning_rate,
        )
        loop.train(state, step, feed, schedule, [collect], save_nothing, clock, StopRequest())
    return collect.metrics


class CollectMetrics:
    """Keeps the numbers of the newest report; waits for the first step."""

    pause_kind = FIRST_STEP

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}

    def is_due(self, end: StepEnd) -> bool:
        return end.is_first or bool(end.metrics)

    def __call__(self, end: StepEnd) -> None:
        if end.is_first:
            end.outcome.numpy()
        self.metrics = {
            name: value for name, value in end.metrics.items() if not isinstance(value, str)
        }


class SpanRecorder:
    """A step that waits for its device, with a record of its own times and of the times of its
    batches.

    Attributes:
        start_s, end_s: of each step.
    """

    def __init__(self, step: Step):
        self._step = step
        self.start_s: list[float] = []
        self.end_s: list[float] = []
        self._batches: list[tuple[Times, bool]] = []  # and whether it is the last of its step

    def __call__(
        self,
        first: Sequence[Batch],
        following: Sequence[Sequence[Batch]],
        number: int,
        rates: Rates,
        stop: bool = False,
    ) -> tuple[tf.Tensor, list[Batch]]:
        self.start_s.append(time.perf_counter())
        outcome, handed = self._step(first, following, number, rates, stop)
        self.synchronize(outcome)
        self.end_s.append(time.perf_counter())
        return outcome, handed

    def hand_over(self, features: Sequence[Batch]) -> list[Batch]:
        return self._step.hand_over(features)

    def left_unchanged(self, error: tf.errors.OpError) -> bool:
        return self._step.left_unchanged(error)

    def synchronize(self, outcome: tf.Tensor) -> None:
        self._step.synchronize(outcome)

    def read(self, outcome: tf.Tensor) -> dict[str, float]:
        return self._step.read(outcome)

    def recorded(self, feed: loop.BatchFeed) -> loop.BatchFeed:
        """Return a feed of the same batches that records their times."""
        return RecordedFeed(feed, self._batches)

    def spans(self) -> Iterator[Span]:
        """Yield the spans of the measured batches; a step of several batches has one, under its
        last batch.
        """
        step = 0
        for batch, (times, last) in enumerate(self._batches):
            if step >= WARM_UP:
                yield Span(times.producer, "read", times.began_s, times.read_s, batch)
                yield Span(times.producer, "produce", times.read_s, times.produced_s, batch)
                if last:
                    yield Span(MODEL, "step", self.start_s[step], self.end_s[step], batch)
            step += last


class RecordedFeed:
    """A feed that appends the times of each batch of the first replica, and whether it is the last
    of its step.
    """

    def __init__(self, feed: loop.BatchFeed, batches: list[tuple[Times, bool]]):
        self._feed, self._batches = feed, batches

    @property
    def is_ready(self) -> bool:
        return self._feed.is_ready

    def __next__(self) -> tuple[ProducedBatch, ...]:
        replica_batches = next(self._feed)
        self._batches.append((replica_batches[0].times, replica_batches[0].planned.last))
        return replica_batches
