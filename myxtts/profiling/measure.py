"""The times of a run's stages on its own corpus, model and devices: each alone, and all together."""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.batch import first_rows
from myxtts.clock import Clock, Times
from myxtts.config.schema import Config
from myxtts.data.pipeline import Pipeline, ReplicaBatches
from myxtts.data.plan_iterator import Position
from myxtts.data.producer import hand_over
from myxtts.errors import TrainingError
from myxtts.observe.advice import candidates
from myxtts.placement import devices
from myxtts.placement.replicas import make_replicas
from myxtts.placement.routes import Placement, Route, single_route
from myxtts.planner.emulator import Span
from myxtts.planner.stage_times import StageProfile, StageTimes
from myxtts.profiling.analysis import Measurement, TracedRun, Trials
from myxtts.profiling.flops import matmul_flops_per_s, step_flops
from myxtts.profiling.nvml import GpuSampler
from myxtts.profiling.report import DeviceMetrics
from myxtts.training import loop
from myxtts.training.checkpoint import save_nothing
from myxtts.training.diagnostics import explain_out_of_memory
from myxtts.training.hooks import Hook, StepEnd
from myxtts.training.run_folder import RunFolder
from myxtts.training.schedule import ema_decay
from myxtts.training.setup import TrainingSetup, configure_devices, make_step, open_corpora, set_up
from myxtts.training.start import resolve_start
from myxtts.training.state import TrainingState
from myxtts.training.step import Step
from myxtts.training.stop_request import StopRequest

WARM_UP = 5  # steps before the clock is read: of those that follow, none fills an empty queue or is traced
KEPT = 2  # batches of each bucket that the stages alone are measured on, so that memory has a bound
WORTH_A_TRIAL = 0.9  # of the slowest stage's time: what takes so much is tried with other settings, too
TRIALS = 5
REDUCTIONS = 20  # of which the median is taken
LEARNING_RATE = 1e-8  # the weights stay as they were, and finite
PRODUCT_TYPES = {"float32": "float32", "mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}

Kept = dict[int, list[dict[str, tf.Tensor]]]  # batches by bucket


@dataclass(frozen=True)
class Bench:
    """All that a run has when its first step comes."""

    placement: Placement
    setup: TrainingSetup
    step: Step

    @property
    def config(self) -> Config:
        return self.setup.config

    @property
    def state(self) -> TrainingState:
        return self.setup.state

    @property
    def route(self) -> Route:
        return self.placement.routes[0]

    @property
    def single(self) -> bool:
        return self.route.data == self.route.model

    @property
    def devices(self) -> int:
        """GPUs, real or simulated."""
        return self.config.placement.simulate_gpus or devices.gpu_count()

    def pipeline(self, synchronize: bool, **changes: Any) -> Pipeline:
        """As a run has it, or with other settings of reading."""
        return self.setup.training_pipeline(synchronize, **changes)


@dataclass(frozen=True)
class MeasurementWindow:
    """The batches that all is measured on, from the beginning of the plan.

    Attributes:
        step: int [batches], the step of each; the figures leave out those before WARM_UP.
        bucket: int [batches].
        audio_s, padded_s: float [batches], speech in each, without and with padding.
    """

    step: np.ndarray
    bucket: np.ndarray
    audio_s: np.ndarray
    padded_s: np.ndarray

    @property
    def measured(self) -> np.ndarray:
        """bool [batches], which of them count."""
        return self.step >= WARM_UP


def profile(config: Config, steps: int) -> tuple[Measurement, DeviceMetrics, Placement]:
    """Measure a run with these settings on `steps` steps. Nothing that it writes stays.

    Raises:
        UserError: the run could not start, or not go on.
    """
    with open_bench(config) as bench:
        return *measure(bench, steps), bench.placement


def measure_stage_times(config: Config, steps: int) -> StageProfile:
    """The stages of one replica on `steps` steps, and the all-reduce between its two devices.

    Raises:
        UserError: as `profile`.
    """
    with open_bench(config) as bench:
        pipeline = bench.pipeline(synchronize=not bench.single)
        stretch = stretch_of(pipeline, steps + WARM_UP)
        stages_s, _ = measure_alone(bench, pipeline, stretch)
        gradients = [(v.shape, v.dtype) for v in bench.state.trained]
        reduce_s = time_all_reduce((bench.route.data, bench.route.model), gradients)
        return StageProfile(StageTimes.from_stages(stages_s), stretch.bucket[stretch.measured], reduce_s)


def time_all_reduce(models: Sequence[str], gradients: Sequence[tuple[Sequence[int], str]]) -> float:
    """Median seconds in which replicas on some devices add up gradients, as `Step` does.

    In a process without another strategy of several devices: TensorFlow would take both for parts of one all-reduce.

    Args:
        gradients: shape and dtype of each.
    """
    replicas = make_replicas(tuple(Route(model, model) for model in models))
    own = []
    for model in models:
        with tf.device(model):
            own.append([tf.zeros(*gradient) for gradient in gradients])

    @tf.function
    def added(own):
        summed = replicas.strategy.run(
            lambda gradients: tf.distribute.get_replica_context().all_reduce("SUM", gradients),
            (replicas.per_replica(own),),
        )
        return [replicas.local_results(one) for one in summed]

    times_s = []
    for _ in range(REDUCTIONS + 1):
        started_s = time.perf_counter()
        for part in added(own)[-1]:
            devices.synchronize(part)
        times_s.append(time.perf_counter() - started_s)
    return float(np.median(times_s[1:]))  # the first traces


@contextmanager
def open_bench(config: Config) -> Iterator[Bench]:
    """All that a run has before its first step, with a run folder that does not stay."""
    with tempfile.TemporaryDirectory(prefix="myxtts-profile-") as name:
        folder = RunFolder(Path(name))
        run = config.run.model_copy(update={"resume": False, "validate_every": 0, "sample_every": 0})
        config, start = resolve_start(config.model_copy(update={"run": run}), folder)
        placement = configure_devices(config)
        single_route(placement, "a profile")
        try:
            replicas = make_replicas(placement.routes)
            setup = set_up(config, start, replicas, open_corpora(config, start, replicas, folder.path))
            yield Bench(placement, setup, setup.make_step())
        except loop.StepOutOfMemory as error:
            raise TrainingError(explain_out_of_memory(error.cause, placement)) from error
        except tf.errors.ResourceExhaustedError as error:
            raise TrainingError(explain_out_of_memory(error, placement)) from error


def measure_alone(bench: Bench, pipeline: Pipeline, stretch: MeasurementWindow) -> tuple[dict[str, np.ndarray], Kept]:
    """Seconds of each stage alone, by stage, and the batches that they were taken on."""
    read_s, waves = time_reading(pipeline, stretch)
    produce_s, features = time_each(stretch, waves, lambda wave: produced(pipeline, wave, bench.route.data))
    transfer_s, batches = time_each(stretch, features, lambda one: handed(one, bench.route.model))
    step_s = time_steps(bench, bench.step, stretch, batches)
    return {"read": read_s, "produce": produce_s, "transfer": transfer_s, "step": step_s}, batches


def measure(bench: Bench, steps: int) -> tuple[Measurement, DeviceMetrics]:
    """Each stage alone, then all of them twice plainly and twice watched, by turns."""
    pipeline = bench.pipeline(synchronize=not bench.single)
    stretch = stretch_of(pipeline, steps + WARM_UP)
    alone_s, batches = measure_alone(bench, pipeline, stretch)
    tried = try_settings(bench, stretch, batches, alone_s)

    gpu = GpuSampler([d.physical for d in bench.placement.devices] if bench.placement.on_gpu else [])
    watched_pipeline = bench.pipeline(synchronize=True)
    plain_s, watched = [], []
    for _ in range(2):
        with gpu.sampling():
            plain_s.append(run_untraced(bench, pipeline, steps))
        watched.append(run_traced(bench, watched_pipeline, steps))

    flops_per_s, uncounted = count_flops(bench, stretch, batches, alone_s["step"])
    with tf.device(bench.route.model):
        product_flops_per_s = matmul_flops_per_s(PRODUCT_TYPES[bench.config.training.precision])
    counted = stretch.measured
    last = np.append(np.diff(stretch.step) > 0, True)  # of its step
    measurement = Measurement(
        work=stretch.audio_s[counted],
        padded_work=stretch.padded_s[counted],
        isolated=StageTimes.from_stages(alone_s),
        untraced_s=plain_s,
        traced=watched,
        step_bucket=stretch.bucket[counted & last],
        single_device=bench.single,
        devices=bench.devices,
        trials=Trials(**tried),
    )
    findings = DeviceMetrics(
        step_traces=bench.step.traces,
        model_flops_per_s=flops_per_s,
        not_counted_reason=uncounted,
        matmul_flops_per_s=product_flops_per_s,
        gpu_usage={number: usage.to_json() for number, usage in gpu.usage.items()},
        no_usage_reason=gpu.reason,
        shares_cores=not bench.placement.on_gpu,
    )
    return measurement, findings


def stretch_of(pipeline: Pipeline, steps: int) -> MeasurementWindow:
    """The first `steps` steps of the plan, over the end of an epoch where it is short."""
    columns, step = [], 0
    for planned in pipeline.producers[0].planned(Position()):
        columns.append((step, planned.step.bucket, planned.audio_s, planned.padded_s))
        step += planned.last
        if step == steps:
            break
    numbers, buckets, audio_s, padded_s = map(np.array, zip(*columns, strict=True))
    return MeasurementWindow(numbers, buckets, audio_s, padded_s)


def time_reading(pipeline: Pipeline, stretch: MeasurementWindow) -> tuple[np.ndarray, Kept]:
    """Seconds from one batch on the data device to the next, float [measured batches], and some of the batches."""
    times_s, kept = [], {}
    for bucket, (_, wave) in zip(stretch.bucket.tolist(), pipeline.producers[0].read(Position()), strict=False):
        devices.synchronize(wave["pcm"])
        times_s.append(time.perf_counter())
        if len(kept.setdefault(bucket, [])) < KEPT:
            kept[bucket].append(wave)
    return np.diff(times_s)[stretch.measured[1:]], kept


def time_each(
    stretch: MeasurementWindow, kept: Kept, stage: Callable[[dict[str, tf.Tensor]], dict[str, tf.Tensor]]
) -> tuple[np.ndarray, Kept]:
    """Seconds of a stage on its own for each measured batch, by kept ones of the same bucket; and what it gives."""
    results = {bucket: [stage(batch) for batch in batches] for bucket, batches in kept.items()}  # warms up
    times_s = []
    for number, bucket in enumerate(stretch.bucket[stretch.measured].tolist()):
        batch = kept[bucket][number % len(kept[bucket])]
        started_s = time.perf_counter()
        stage(batch)
        times_s.append(time.perf_counter() - started_s)
    return np.array(times_s), results


def produced(pipeline: Pipeline, wave: dict[str, tf.Tensor], device: str) -> dict[str, tf.Tensor]:
    """Features, when they lie on the device."""
    with tf.device(device):
        features = pipeline.producers[0].produce(wave)
    devices.synchronize(features["mel"])
    return features


def handed(features: dict[str, tf.Tensor], device: str) -> dict[str, tf.Tensor]:
    """A batch, when it lies on the device."""
    batch = hand_over(features, device)
    devices.synchronize(batch["mel"])
    return batch


def time_steps(bench: Bench, step: Step, stretch: MeasurementWindow, kept: Kept) -> np.ndarray:
    """Seconds of the step alone, shared evenly by its batches: float [measured batches]."""
    several = min(2, bench.config.training.gradient_accumulation)  # the last batch of a step has its own trace
    for bucket in kept:
        take_step(bench, step, kept[bucket][:1] * several)  # traces and warms up
    numbers, buckets = stretch.step[stretch.measured], stretch.bucket[stretch.measured]
    times_s = []
    for number in dict.fromkeys(numbers.tolist()):
        own = buckets[numbers == number].tolist()
        step_s = take_step(bench, step, [kept[bucket][i % len(kept[bucket])] for i, bucket in enumerate(own, number)])
        times_s += [step_s / len(own)] * len(own)
    return np.array(times_s)


def take_step(bench: Bench, step: Step, batches: Sequence[dict[str, tf.Tensor]]) -> float:
    """Seconds of a step, until the device is done with it."""
    started_s = time.perf_counter()
    decay = ema_decay(bench.state.step, bench.config.training.ema_decay)
    step([[batch] for batch in batches], bench.state.step + 1, LEARNING_RATE, decay).numpy()
    return time.perf_counter() - started_s


def try_settings(
    bench: Bench, stretch: MeasurementWindow, kept: Kept, alone_s: dict[str, np.ndarray]
) -> dict[str, float | None]:
    """Other settings of the slowest stage, as Measurement has them."""
    total_s = {stage: times.sum() for stage, times in alone_s.items()}
    slow_s = WORTH_A_TRIAL * max(total_s["read"], total_s["produce"] + total_s["transfer"], total_s["step"])
    data, tried = bench.config.data, {}
    workers = [change for change in candidates("read", data, bench.single, bench.devices) if "num_workers" in change]
    if total_s["read"] > slow_s and workers:
        # Both with the files in the host's memory, where the first pass has brought them.
        now_s, more_s = (
            time_reading(bench.pipeline(synchronize=True, **change), stretch)[0].mean() for change in ({}, workers[0])
        )
        tried["more_workers_s"] = float(alone_s["read"].mean() * more_s / now_s)
    if total_s["step"] > slow_s and not data.enable_static_shapes:
        tried |= try_steps(bench, kept[most_frequent_bucket(stretch)][0])
    return tried


def try_steps(bench: Bench, batch: dict[str, tf.Tensor]) -> dict[str, float | None]:
    """Steps with static shapes, and on half the rows, against those of the run; by turns."""
    static = bench.config.data.model_copy(update={"enable_static_shapes": True})
    static_step = make_step(bench.config.model_copy(update={"data": static}), bench.state)
    rows = len(batch["tokens"])
    with tf.device(bench.route.model):
        half = first_rows(batch, bench.state.model.BATCH_FIELDS, rows // 2)
    variants = [(bench.step, batch), (static_step, batch), (bench.step, half if rows > 1 else batch)]
    times_s = [[take_step(bench, step, [own]) for step, own in variants] for _ in range(TRIALS + 1)]
    # The first traces. Of the others the best: what else runs on the machine only ever adds time.
    plain_s, static_s, half_s = np.min(times_s[1:], axis=0)
    row_s = (plain_s - half_s) / (rows - rows // 2)
    fixed_share = float(np.clip(1.0 - row_s * rows / plain_s, 0.0, 1.0)) if rows > 1 else None
    return {"static_shapes_ratio": float(static_s / plain_s), "fixed_fraction": fixed_share}


def most_frequent_bucket(stretch: MeasurementWindow) -> int:
    return int(np.bincount(stretch.bucket[stretch.measured]).argmax())


def run_untraced(bench: Bench, pipeline: Pipeline, steps: int) -> float:
    """Seconds of the measured steps, in the loop that a run has."""
    with pipeline.open_feed(Position()) as feed:
        return run_loop(bench, bench.step, feed, steps)["step_s"] * steps


def run_traced(bench: Bench, pipeline: Pipeline, steps: int) -> TracedRun:
    """The same, while each step is waited for and all times are noted."""
    step, notes = TracedStep(bench.step), []
    with pipeline.open_feed(Position()) as feed:
        metrics = run_loop(bench, step, record_batches(feed, notes), steps)
    begin_s, end_s = np.array(step.begin_s[-steps:]), np.array(step.end_s[-steps - 1 :])
    return TracedRun(
        duration_s=metrics["step_s"] * steps,
        wait_s=metrics["wait_s"] * steps,
        blocked_s=metrics["blocked_s"] * steps,
        busy_s=float((end_s[1:] - begin_s).sum()),
        step_s=np.diff(end_s),
        spans=list(record_spans(notes, step)),
    )


def run_loop(bench: Bench, step: Callable, feed: Iterator[ReplicaBatches], steps: int) -> dict[str, float | str]:
    """Metrics of `steps` steps after WARM_UP of them, as a run would report them."""
    state, collected = bench.state, CollectMetrics()
    clock = Clock()
    # The loop leaves its first step out of all reports: so the second pass begins with the last step of the warm-up.
    for total in (state.step + WARM_UP - 1, state.step + WARM_UP + steps):
        schedule = loop.Schedule(
            total_steps=total,
            log_every=sys.maxsize,  # one report, at the end
            checkpoint_every=0,
            learning_rate=lambda step: LEARNING_RATE,
            ema_decay=lambda step: ema_decay(step, bench.config.training.ema_decay),
        )
        loop.train(state, step, feed, schedule, [collected], save_nothing, clock, StopRequest())
    return collected.metrics


class CollectMetrics(Hook):
    """Keeps the metrics of the newest report; waits for the first step."""

    def __init__(self) -> None:
        super().__init__(every=0)
        self.metrics: dict[str, float | str] = {}

    def is_due(self, end: StepEnd) -> bool:
        return end.is_first or bool(end.metrics)

    def __call__(self, end: StepEnd) -> None:
        if end.is_first:
            end.outcome.numpy()
        self.metrics = end.metrics


class TracedStep:
    """A step that waits for its device and notes when it began and ended."""

    def __init__(self, step: Step):
        self._step = step
        self.read = step.read
        self.begin_s: list[float] = []
        self.end_s: list[float] = []

    def __call__(self, *arguments) -> tf.Tensor:
        self.begin_s.append(time.perf_counter())
        outcome = self._step(*arguments)
        outcome.numpy()
        self.end_s.append(time.perf_counter())
        return outcome


def record_batches(feed: Iterator[ReplicaBatches], notes: list[tuple[Times, bool]]) -> Iterator[ReplicaBatches]:
    """The feed's batches, with their times and whether each is the last of its step written down."""
    for one in feed:
        notes.append((one[0].times, one[0].planned.last))
        yield one


def record_spans(notes: Sequence[tuple[Times, bool]], step: TracedStep) -> Iterator[Span]:
    """Spans of the measured batches; a step of several batches has one, under its last."""
    number = 0
    for batch, (times, last) in enumerate(notes):
        if number >= WARM_UP:
            yield Span("read", batch, times.began_s, times.read_s)
            yield Span("produce", batch, times.read_s, times.produced_s)
            yield Span("transfer", batch, times.produced_s, times.handed_s)
            if last:
                yield Span("step", batch, step.begin_s[number], step.end_s[number])
        number += last


def count_flops(bench: Bench, stretch: MeasurementWindow, kept: Kept, step_s: np.ndarray) -> tuple[float | None, str]:
    """Operations a second of the model's matrix products in a step of the commonest bucket; or why there are none."""
    bucket = most_frequent_bucket(stretch)
    own_s = step_s[stretch.bucket[stretch.measured] == bucket].mean()
    try:
        return step_flops(bench.state, kept[bucket][0]) / own_s, ""
    except ValueError as error:
        return None, str(error)
