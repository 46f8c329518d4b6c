"""Measure the stages of a run on its own corpus, model and devices: each in isolation, and all
together in the training loop.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.base.clock import MODEL, Clock, Interval
from myxtts.batches.pipeline import Pipeline
from myxtts.batches.plan import Pass
from myxtts.checkpoints.run_folder import RunFolder
from myxtts.config.flags import turned_off, with_values
from myxtts.config.schema import OFF_IN_TRIAL, Config, RunConfig
from myxtts.devicefeed.contract import Batch
from myxtts.devicefeed.devices import synchronize
from myxtts.devicefeed.errors import PlacementError
from myxtts.devicefeed.producer import ProduceFunction, ReplicaFeed, trace_produce
from myxtts.devicefeed.routes import Placement, Route
from myxtts.devicefeed.times import Span, Timeline
from myxtts.placement.replicas import make_replicas
from myxtts.report.reporter import TensorBoard
from myxtts.run import loop
from myxtts.run import setup as training_setup
from myxtts.run.description import translate_oom
from myxtts.run.observation import make_sampler, vocoder_loader
from myxtts.run.saving import save_nothing
from myxtts.run.schedule import Schedule
from myxtts.run.setup import TrainingSetup
from myxtts.run.start import resolve_start
from myxtts.run.step import Step
from myxtts.run.stop_request import StopRequest
from myxtts.tasks.tts.teacher import NullTeacher
from myxtts.trial.stages import StageProfile, StageTimes

# The first steps are not measured: they fill empty queues and trace.
WARM_UP = 5

# Batches of each bucket that stages are measured on, again and again. It bounds the memory.
SAMPLES_PER_BUCKET = 2

ALL_REDUCES = 20

# The first all-reduce traces.
UNTIMED = 3

SampleBatches = dict[int, list[Batch]]
"""Batches by bucket."""


@dataclass(frozen=True)
class ProfiledRun:
    """A run before its first step; `watch` is entered around measured steps."""

    setup: TrainingSetup
    step: Step
    watch: AbstractContextManager[object] = field(default_factory=nullcontext)

    @property
    def placement(self) -> Placement:
        return self.setup.run.placement

    @property
    def route(self) -> Route:
        return self.placement.routes[0]


@contextmanager
def open_run(config: Config, max_replicas: int = 1) -> Iterator[ProfiledRun]:
    """Set up a run in a folder that is removed afterwards; raise UserError if it cannot start."""
    with tempfile.TemporaryDirectory(prefix="myxtts-profile-") as name:
        config = with_values(turned_off(config, OFF_IN_TRIAL), {"observer": "model"})
        with training_setup.open_run(resolve_start(config, RunFolder(Path(name)))) as opened:
            if len(opened.placement.routes) > max_replicas:
                raise PlacementError(
                    f"a profile of {len(opened.placement.routes)} replicas was requested, but only"
                    " one is supported. Give one GPU with --model-gpus; `myxtts plan` compares"
                    " placements with several."
                )
            with translate_oom(opened):
                setup = opened.set_up(opened.read_corpora())
                yield ProfiledRun(setup, setup.make_step())


@dataclass(frozen=True)
class MeasurementWindow:
    """The batches of a measurement, from the beginning of the plan, with the warm-up.

    Attributes:
        step, bucket: int [batches], number of the step of each batch, and its bucket.
        audio_s, padded_s: float [batches], seconds of speech in each, without and with padding.
    """

    step: np.ndarray
    bucket: np.ndarray
    audio_s: np.ndarray
    padded_s: np.ndarray

    @property
    def measured(self) -> np.ndarray:
        """bool [batches], which batches are measured."""
        return self.step >= WARM_UP

    @property
    def measured_buckets(self) -> np.ndarray:
        """int [measured batches], the bucket of each."""
        return self.bucket[self.measured]


def measurement_window(pipeline: Pipeline, steps: int) -> MeasurementWindow:
    """Return the window of WARM_UP and `steps` steps; a short corpus is read for several epochs."""
    columns = []
    step = 0
    for planned in pipeline.planned(Pass()):
        columns.append((step, planned.step.bucket, planned.audio_s, planned.padded_s))
        step += planned.last
        if step == WARM_UP + steps:
            break
    return MeasurementWindow(*map(np.array, zip(*columns, strict=True)))


# A temporary run is set up. Its stages are timed one after the other on the same sample batches,
# then a step with half of the rows, from which the fixed part of a step follows, then samples and
# an evaluation, and the all-reduce if there are two devices. It runs in a process of its own, so it
# leaves nothing configured behind.
def measure_stage_times(config: Config, steps: int) -> StageProfile:
    """Measure the stages of one replica on so many steps; raises UserError as `open_run`."""
    with open_run(config) as run:
        pipeline = run.setup.training_pipeline(synchronize=run.setup.between_devices)
        window = measurement_window(pipeline, steps)
        times, features = measure_isolated(run, pipeline, window)
        fixed = measure_fixed(run, window, features, times)
        held_out = run.setup.corpora.held_out
        held_out_batches = held_out.plan.steps_per_epoch if held_out else 0
        samples_s, evaluation_s = time_observations(run.setup, config.run)
        all_reduce_s = measure_all_reduce(run) if run.setup.between_devices else 0.0
        rows = int(run.setup.corpora.training.plan.batch_sizes.max())
        observing = held_out_batches, samples_s, evaluation_s
        return StageProfile(times, all_reduce_s, rows, *observing, fixed)


def time_batches(config: Config, steps: int) -> float:
    """Return the seconds per batch of one replica in a run with all its stages and replicas."""
    with open_run(config, max_replicas=sys.maxsize) as run:
        pipeline = run.setup.training_pipeline(synchronize=False)
        accumulation = config.training.gradient_accumulation
        return run_untraced(run, pipeline, steps) / (steps * accumulation)


def measure_isolated(
    run: ProfiledRun, pipeline: Pipeline, window: MeasurementWindow
) -> tuple[StageTimes, SampleBatches]:
    """Return the times of the measured batches in each stage alone, and sample features."""
    read_s, waves = time_reading(pipeline, window)
    produce = produce_on(run.route.data, pipeline.producers[0].produce)
    produce_s, features = time_stage(window, waves, produce)
    transfer_s, _ = time_stage(window, features, lambda batch: transfer(run.step, batch))
    step_s = time_steps(run.setup, run.step, window, features)
    return StageTimes(read_s, produce_s, transfer_s, step_s), features


# If a step takes F + n · R for n rows, half of the rows take F + n · R / 2, so the fixed share is
# twice the ratio of both times minus 1.
def measure_fixed(
    run: ProfiledRun, window: MeasurementWindow, features: SampleBatches, times: StageTimes
) -> float:
    """Return the fraction of a step that does not depend on its rows, by steps of half the rows."""
    fields = run.setup.state.model.BATCH_FIELDS
    of_rows = [name for name, field in fields.items() if field.dims[:1] == ("batch",)]

    def half(batch: Batch) -> Batch:
        with tf.device(run.route.data):
            return batch | {name: batch[name][: -(-len(batch[name]) // 2)] for name in of_rows}

    halves = {bucket: [*map(half, batches)] for bucket, batches in features.items()}
    ratio = time_steps(run.setup, run.step, window, halves).mean() / times.step_s.mean()
    return float(np.clip(2.0 * ratio - 1.0, 0.0, 1.0))


def time_reading(pipeline: Pipeline, window: MeasurementWindow) -> tuple[np.ndarray, SampleBatches]:
    """Return the seconds between batches, float [measured batches], and sample batches."""
    times_s: list[float] = []
    samples: SampleBatches = {}
    with closing(pipeline.producers[0].read(Pass())) as batches:
        for bucket, (_, waves) in zip(window.bucket.tolist(), batches, strict=False):
            synchronize(waves["pcm"])
            times_s.append(time.perf_counter())
            if len(samples.setdefault(bucket, [])) < SAMPLES_PER_BUCKET:
                samples[bucket].append(waves)
    return np.diff(times_s)[window.measured[1:]], samples


def time_stage(
    window: MeasurementWindow, samples: SampleBatches, stage: Callable[[Batch], Batch]
) -> tuple[np.ndarray, SampleBatches]:
    """Return the seconds of each measured batch, timed on samples of its bucket, and results."""
    # The first call for each sample warms up.
    results = {bucket: [*map(stage, batches)] for bucket, batches in samples.items()}
    times_s = []
    for number, bucket in enumerate(window.measured_buckets.tolist()):
        batch = samples[bucket][number % len(samples[bucket])]
        started_s = time.perf_counter()
        stage(batch)
        times_s.append(time.perf_counter() - started_s)
    return np.array(times_s), results


def produce_on(device: str, produce: ProduceFunction) -> Callable[[Batch], Batch]:
    """Return a function that computes features and waits for the device."""

    def produce_and_wait(waves: Batch) -> Batch:
        with tf.device(device):
            features, element = produce(waves)
        element.numpy()
        return features

    return produce_and_wait


def time_producing_without_teacher(
    pipeline: Pipeline, window: MeasurementWindow
) -> np.ndarray | None:
    """Return as `time_stage` what producing takes without the network of the teacher, if any."""
    producer = pipeline.producers[0]
    if producer.extractor.load_frozen is None:
        return None
    extractor = replace(producer.extractor, load_frozen=lambda _: NullTeacher())
    produce = produce_on(producer.device, trace_produce(producer.device, extractor))
    _, waves = time_reading(pipeline, window)
    return time_stage(window, waves, produce)[0]


def transfer(step: Step, features: Batch) -> Batch:
    """Copy features to the model device and wait for it."""
    (batch,) = step.hand_over([features])
    synchronize(batch["mel"])
    return batch


def profile_learning_rate(steps_done: int) -> float:
    """Return a rate that leaves the weights as they are, and finite, at any step."""
    return 1e-8


def time_steps(
    setup: TrainingSetup, step: Step, window: MeasurementWindow, samples: SampleBatches
) -> np.ndarray:
    """Return the seconds of the step, shared evenly by its batches: float [measured batches]."""
    # Tracing first: with gradient accumulation, the last batch of a step has a trace of its own.
    microbatches = min(2, setup.config.training.gradient_accumulation)
    for bucket in samples:
        time_step(setup, step, samples[bucket][:1] * microbatches)
    steps = window.step[window.measured]
    times_s: list[float] = []
    for number in dict.fromkeys(steps.tolist()):
        buckets = window.measured_buckets[steps == number].tolist()
        batches = [
            samples[bucket][i % len(samples[bucket])] for i, bucket in enumerate(buckets, number)
        ]
        step_s = time_step(setup, step, batches)
        times_s += [step_s / len(batches)] * len(batches)
    return np.array(times_s)


def time_step(setup: TrainingSetup, step: Step, features: Sequence[Batch]) -> float:
    """Take a step on features of its microbatches; return its seconds on the device."""
    microbatches = [[transfer(step, batch)] for batch in features]
    rates = replace(setup.schedule, learning_rate=profile_learning_rate)
    started_s = time.perf_counter()
    outcome = step(microbatches, setup.state.step + 1, rates)
    step.synchronize(outcome)
    seconds = time.perf_counter() - started_s
    # The next step continues the numbers on the device.
    setup.state.step += 1
    return seconds


def time_observations(setup: TrainingSetup, settings: RunConfig) -> tuple[float, float]:
    """Return the seconds of a set of samples and of an evaluation; 0 of what is not due in a run.

    The second call of each is timed; the first one prepares pictures and functions.
    """
    if not setup.corpora.held_out:
        return 0.0, 0.0
    seconds = [0.0, 0.0]
    state = setup.state
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        load = vocoder_loader(setup, state.device, folder)
        if settings.sample_every:
            with closing(TensorBoard(folder.tensorboard)) as tensorboard:
                pipeline = setup.validation_pipeline()
                sampler = make_sampler(
                    setup, state.model, state.device, pipeline, folder, tensorboard, load
                )
                with tf.device(state.device):
                    sampler.trace()
                    seconds[0] = _second_call_s(sampler)
        if settings.evaluate_every:
            # It imports every evaluator, which takes 0.4 s, and few runs need it.
            from myxtts.run.observing import open_evaluator

            evaluator = open_evaluator(setup, state.model, state.device, folder, load)
            seconds[1] = _second_call_s(lambda step: evaluator(step, None))
    return seconds[0], seconds[1]


def _second_call_s(observe: Callable[[int], object]) -> float:
    observe(0)
    started_s = time.perf_counter()
    observe(1)
    return time.perf_counter() - started_s


def measure_all_reduce(run: ProfiledRun) -> float:
    """Return the median seconds in which the two devices of a run reduce the gradients of a step.

    Call it in a process without another strategy of several devices: TensorFlow would take both for
    parts of one all-reduce.
    """
    routes = tuple(Route(model, model) for model in (run.route.data, run.route.model))
    size = sum(variable.shape.num_elements() for variable in run.setup.state.trained)
    return time_all_reduce(make_replicas(routes).strategy, size, ALL_REDUCES)


def time_all_reduce(strategy: tf.distribute.Strategy, size: int, repetitions: int) -> float:
    """Return the median seconds in which replicas sum float32 [size], until it can be read."""
    with strategy.scope():
        # A variable of the strategy is on the device of each replica.
        tensor = tf.Variable(tf.ones([size]))

    @tf.function(autograph=False)
    def all_reduce_once():
        context = tf.distribute.get_replica_context
        return strategy.run(lambda: context().all_reduce("SUM", tensor.read_value()))

    times_s = []
    for _ in range(UNTIMED + repetitions):
        started_s = time.perf_counter()
        for copy in strategy.experimental_local_results(all_reduce_once()):
            synchronize(copy)
        times_s.append(time.perf_counter() - started_s)
    return float(np.median(times_s[UNTIMED:]))


class TracedRun(NamedTuple):
    """A run of all stages together: the times of its steps by the clock, and all its spans.

    `step_s` is float [steps], from the end of the previous step to the end of the step.
    """

    total: Interval
    step_s: np.ndarray
    spans: Sequence[Span]


def run_untraced(run: ProfiledRun, pipeline: Pipeline, steps: int) -> float:
    """Return the seconds of the measured steps in the training loop."""
    return _run_together(run, run.step, pipeline, steps, Timeline()).busy_s


def run_traced(run: ProfiledRun, pipeline: Pipeline, steps: int) -> TracedRun:
    """Run the same steps, wait for each, and record the times of all stages."""
    timeline = Timeline(size=sys.maxsize)
    total = _run_together(run, SynchronousStep(run.step), pipeline, steps, timeline)
    spans = timeline.newest()
    # The first step of the loop is the last one of the warm-up.
    last_warm_up, *measured = step_spans(spans)
    of_batches = [
        span for span in spans if span.lane != MODEL and span.number > last_warm_up.number
    ]
    step_s = np.diff([span.end_s for span in (last_warm_up, *measured)])
    return TracedRun(total, step_s, [*of_batches, *measured])


# The loop runs twice: a warm-up that fills queues and traces, then the measured steps.
def _run_together(
    run: ProfiledRun, step: Step, pipeline: Pipeline, steps: int, timeline: Timeline
) -> Interval:
    # No report before the end: it would wait for the device.
    schedule = replace(
        run.setup.schedule, log_every=sys.maxsize, learning_rate=profile_learning_rate
    )
    with pipeline.open_feed(Pass()) as feed:
        train_steps(run.setup, step, feed, schedule, WARM_UP - 1)
        with run.watch:
            return train_steps(run.setup, step, feed, schedule, 1 + steps, timeline)


def train_steps(
    setup: TrainingSetup,
    step: Step,
    feed: ReplicaFeed,
    schedule: Schedule,
    steps: int,
    timeline: Timeline | None = None,
) -> Interval:
    """Take steps in the training loop, without checkpoints, and put their spans on the timeline.

    Returns the times of all but the first, which the loop does not count.
    """
    routes = setup.replicas.routes
    producers = set(chain.from_iterable(route.data_devices for route in routes))
    clock = Clock(producers=len(producers), replicas=len(routes), timeline=timeline)
    schedule = replace(schedule, total_steps=setup.state.step + steps, checkpoint_every=0)
    loop.train(setup.state, step, feed, schedule, [], save_nothing, clock, StopRequest())
    return clock.total()


def step_spans(spans: Sequence[Span]) -> list[Span]:
    """Return one span for each step, in their order.

    What the main thread does after a step, up to its next wait, has its number, and is left out.
    """
    steps: dict[int, Span] = {}
    for span in spans:
        if span.lane == MODEL and span.kind == "step":
            steps.setdefault(span.number, span)
    return list(steps.values())


class SynchronousStep(Step):
    """A step that waits for its device, so that a call lasts as long as the device works."""

    def __init__(self, step: Step):
        # It is the same step, with its compiled functions and what they hold.
        vars(self).update(vars(step))

    def __call__(self, *arguments: Any, **named: Any) -> tf.Tensor:
        outcome = super().__call__(*arguments, **named)
        self.synchronize(outcome)
        return outcome
