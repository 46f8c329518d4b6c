"""Sections 3 and 5: the model on its device, steps on the heaviest batches of the plan, and steps
through the real pipeline, with the overlap of its stages and the audit of their operations.
"""

import math
import resource
import shutil
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.batch import Batch, empty_batch
from myxtts.clock import FIRST_STEP, Clock, Interval, Span, Timeline
from myxtts.config.schema import Config
from myxtts.data.batch_plan import Pass, Plan, Position
from myxtts.data.pipeline import Pipeline
from myxtts.machine import available_memory_mib
from myxtts.models.layers import parameter_count
from myxtts.placement.audit import audit, find_copies, has_gpu_kernels, require_device
from myxtts.placement.routes import Placement
from myxtts.preflight.checks import Check, recommended, required
from myxtts.preflight.prerequisites import existing_parent
from myxtts.tf_internals import device_memory_mib
from myxtts.throughput.measure import SynchronousStep, step_spans, train_steps
from myxtts.training import loop
from myxtts.training.description import describe_batch, out_of_memory, segments_of
from myxtts.training.hooks import StepEnd
from myxtts.training.memory import MemoryForecast
from myxtts.training.schedule import ConstantRates, Schedule
from myxtts.training.setup import OpenRun, RunCorpora, TrainingSetup
from myxtts.training.state import TrainingState
from myxtts.training.step import Step, is_scaled
from myxtts.training.stop_request import StopRequest

# Each step that overflows halves the initial loss scale of 2^15.
MAX_SCALED_STEPS = 12

# Of a GPU's memory, for fragmentation in longer runs.
HEADROOM = 0.05

# Through the pipeline; no further step starts after MAX_S.
MIN_STEPS = 4
MAX_S = 60.0

# Of the shorter of producing and training, in dual placement.
MIN_OVERLAP = 0.5

MIN_EFFICIENCY = 0.9
MAX_WAIT_SHARE = 0.1

Period = tuple[float, float]
"""Start and end in seconds."""


@dataclass(frozen=True)
class Trial:
    """A run that has trained on its heaviest batches.

    Attributes:
        step_s: seconds of the last heavy step, without tracing.
        batches: a microbatch of this step, one on each model device.
    """

    setup: TrainingSetup
    pipeline: Pipeline
    step: Step
    step_s: float
    batches: list[Batch]


class StepResult(NamedTuple):
    """Several steps on the same microbatches.

    Attributes:
        metrics: losses and norm of the last step.
        first_s, last_s: seconds of the first and of the last step.
        first_batches: the first microbatch, on the model devices.
    """

    metrics: dict[str, float]
    first_s: float
    last_s: float
    first_batches: list[Batch]


def check_model(run: OpenRun, corpora: RunCorpora) -> Generator[Check, None, Trial | None]:
    """Set up a run and train on the heaviest batches; returns the trial."""
    config = run.config
    placement = run.placement
    initial_mib = process_peak_mib()
    plan = corpora.training.plan
    setup = run.set_up(corpora)
    state = setup.state
    yield check_variables(state, config.model.model_size)
    yield check_outputs(state)
    for name, line in setup.implementation_notes.items():
        yield required(
            True, name, "the fastest implementation that works on the model device", line
        )
    yield check_checkpoint_space(state, config)
    pipeline = setup.training_pipeline(synchronize=True)
    step = setup.make_step()
    if placement.on_gpu:
        for name in device_roles(placement):
            tf.config.experimental.reset_memory_stats(name[1:])
    built_mib = process_peak_mib()
    for bucket in heaviest_buckets(plan):
        batches = full_step(bucket, plan, pipeline, step, config.training.gradient_accumulation)
        try:
            magnitudes = magnitudes_of(state)
            result = take_steps(state, step, batches, setup.schedule)
        except tf.errors.ResourceExhaustedError as error:
            batch = describe_batch(plan, state.step + 1, bucket)
            raise out_of_memory(error, placement, batch) from error
        rows, samples, tokens = plan.shape(bucket)
        count = len(batches.microbatches)
        texts = f" and {tokens} tokens" if tokens else ""
        shape = (
            f"{count} x {rows} utterances of up to {samples / SAMPLE_RATE_HZ:.1f}"
            f" s{texts}{segments_of(config)}"
        )
        yield check_update(state, result, magnitudes, shape)
    if placement.on_gpu:
        yield from check_gpu_memory(placement, setup.memory)
    else:
        yield check_process_memory(initial_mib, built_mib, setup.memory)
    return Trial(setup, pipeline, step, result.last_s, result.first_batches)


def check_variables(state: TrainingState, size: str) -> Check:
    """Check that everything a step changes is on the model devices; raises PlacementError
    if not.
    """
    slots = [*chain.from_iterable(group.optimizer.variables for group in state.groups)]
    groups = {
        "variables": state.model.variables,
        "optimizer slots": slots,
        "averages": state.averages,
    }
    state.require_devices()
    devices = " and ".join(state.replicas.devices)
    counts = ", ".join(f"{len(group)} {name}" for name, group in groups.items() if group)
    return required(
        True,
        "variables",
        f"the model '{size}', its optimizer and averages are on {devices}",
        f"{parameter_count(state.model):,} parameters; {counts}, all on {devices}",
    )


def check_outputs(state: TrainingState) -> Check:
    """Check the devices of the outputs of an eager forward pass."""
    with tf.device(state.device):
        losses, outputs = state.model(empty_batch(state.model.BATCH_FIELDS))
    tensors = {**losses, **outputs}
    require_device(state.device, tensors.items())
    return required(
        True,
        "outputs",
        f"the outputs of a forward pass are on {state.device}",
        f"{', '.join(tensors)}, all there",
    )


def check_checkpoint_space(state: TrainingState, config: Config) -> Check:
    """Check the disk space for the checkpoints that a run keeps, the best one and the one that is
    being written.
    """
    variables = chain.from_iterable(group.values() for group in state.variables().values())
    size_mib = sum(v.shape.num_elements() * v.dtype.size for v in variables) / 2**20
    count = config.run.keep_checkpoints + 2
    free_mib = shutil.disk_usage(existing_parent(Path(config.run.runs_dir))).free / 2**20
    return required(
        free_mib > count * size_mib,
        "disk space for checkpoints",
        f"{count * size_mib:,.0f} MiB: {count} checkpoints of {size_mib:,.1f} MiB",
        f"{free_mib:,.0f} MiB free",
        "Free some disk space, choose another --runs-dir, or keep fewer checkpoints with"
        " --keep-checkpoints.",
    )


def heaviest_buckets(plan: Plan) -> list[int]:
    """Return the buckets with the heaviest batches.

    The first has the longest utterances, which are the heaviest for attention. The second, if it is
    another one, has the most samples per batch: with --batch-seconds, short buckets may have more.
    """
    used = np.unique(plan.epoch(0).step_bucket)
    rows, samples = zip(*(plan.shape(int(bucket))[:2] for bucket in used), strict=True)
    total = np.multiply(rows, samples)
    longest = np.argmax(samples)
    largest = np.argmax(total)
    heaviest = [longest] if total[longest] == total[largest] else [longest, largest]
    return [int(used[number]) for number in heaviest]


def full_step(
    bucket: int, plan: Plan, pipeline: Pipeline, step: Step, accumulation: int
) -> loop.StepBatches:
    """Return a full step of a bucket; its microbatches are repeated if the corpus has no full step
    of it.
    """
    epoch = plan.epoch(0)
    utterances = np.where(epoch.step_bucket == bucket, np.diff(epoch.step_start), -1)
    with pipeline.open_feed(Pass(Position(0, int(utterances.argmax())))) as feed:
        batches = loop.LookAhead(feed, step, Clock()).take(running=None, is_last=True)
    microbatches = batches.microbatches
    return batches._replace(
        microbatches=[microbatches[number % len(microbatches)] for number in range(accumulation)]
    )


def take_steps(
    state: TrainingState, step: Step, batches: loop.StepBatches, schedule: Schedule
) -> StepResult:
    """Take two steps, or more until a loss scale no longer overflows. The first step may trace."""
    rates = ConstantRates(schedule.learning_rate(0), schedule.ema_decay(0))
    first = step.hand_over(batches.features[0])
    optimizers = [group.optimizer for group in state.groups]
    seconds = []
    for _ in range(MAX_SCALED_STEPS if is_scaled(state.optimizer) else 2):
        updates = [int(optimizer.iterations) for optimizer in optimizers]
        started_s = time.perf_counter()
        outcome, first = step(first, batches.features[1:], state.step + 1, rates)
        state.advance(batches.microbatches[0][0].planned.step)
        metrics = step.read(outcome)
        seconds.append(time.perf_counter() - started_s)
        updated = [int(optimizer.iterations) for optimizer in optimizers]
        is_updated = all(new > old for new, old in zip(updated, updates, strict=True))
        if len(seconds) > 1 and is_updated:
            break
    return StepResult(metrics, seconds[0], seconds[-1], first)


def magnitudes_of(state: TrainingState) -> np.ndarray:
    """Return the sum of the absolute values of each trained variable, float64 [trained variables].

    A sum is not finite if one of the values is not. In float32, the first update of a weight, 1e-6,
    would be lost.
    """
    with tf.device(state.device):
        return np.array(
            [tf.reduce_sum(tf.abs(tf.cast(v.value, tf.float64))).numpy() for v in state.trained]
        )


def check_update(
    state: TrainingState, result: StepResult, magnitudes_before: np.ndarray, shape: str
) -> Check:
    magnitudes = magnitudes_of(state)
    finite = all(map(math.isfinite, result.metrics.values())) and bool(
        np.isfinite(magnitudes).all()
    )
    changed = int((magnitudes != magnitudes_before).sum())
    losses = ", ".join(f"{name} {value:.3g}" for name, value in result.metrics.items())
    return required(
        finite and changed > 0,
        f"heaviest step, {shape}",
        "losses, gradient and weights are finite, and the update changes weights",
        f"{losses}; {changed} of {len(magnitudes)} variables changed; "
        f"first step {result.first_s:.1f} s, last step {result.last_s:.2f} s",
        "Listen to the longest utterances; try --precision float32 or a lower --learning-rate.",
    )


def device_roles(placement: Placement) -> dict[str, str]:
    """Return the devices of the routes by name, with their roles."""
    roles: dict[str, list[str]] = {}
    for route in placement.routes:
        for device in route.data_devices:
            roles.setdefault(device, []).append("batches")
        roles.setdefault(route.model, []).append("model")
    return {
        device: " and ".join(dict.fromkeys(device_roles)) for device, device_roles in roles.items()
    }


def check_gpu_memory(placement: Placement, forecast: MemoryForecast) -> Iterator[Check]:
    """Check the peak of the memory in use on each device during the heaviest steps, and the
    observer's in addition.
    """
    for device, role in device_roles(placement).items():
        peak_mib = tf.config.experimental.get_memory_info(device[1:])["peak"] / 2**20
        limit_mib = device_memory_mib(device)
        is_observer = device == (placement.observer or placement.routes[0].model)
        observer_mib = forecast.observer_mib if is_observer else 0.0
        headroom_mib = limit_mib - peak_mib - observer_mib
        observer = f" and about {observer_mib:,.0f} MiB for the observer" if observer_mib else ""
        yield recommended(
            headroom_mib > HEADROOM * limit_mib,
            f"memory of {device} ({role})",
            f"at least {100 * HEADROOM:.0f} % of {limit_mib:,.0f} MiB is free",
            f"peak {peak_mib:,.0f} MiB{observer}, {headroom_mib:,.0f} MiB free",
            "Lower --batch-size or --max-seconds, or add --gradient-checkpointing.",
        )


def check_process_memory(initial_mib: float, built_mib: float, forecast: MemoryForecast) -> Check:
    """Check the peak memory of the process. On the CPU, all logical devices share one memory."""
    peak_mib = process_peak_mib()
    free_mib = available_memory_mib()
    free = (
        "the free memory of this machine is unknown"
        if free_mib is None
        else f"{free_mib:,.0f} MiB free"
    )
    return recommended(
        free_mib is None or free_mib > HEADROOM * peak_mib,
        "memory of the process",
        f"at least {100 * HEADROOM:.0f} % of its peak is free",
        f"peak {peak_mib:,.0f} MiB, including {built_mib - initial_mib:,.0f} for the model "
        f"and {peak_mib - built_mib:,.0f} for the heaviest steps with tracing; {free}; "
        f"a run with full buffers was forecast to take {forecast} more than the model",
        "Lower --batch-size or --max-seconds, or add --gradient-checkpointing.",
    )


def process_peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Bytes on macOS, KiB on Linux.
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


class TrialTimes(NamedTuple):
    """Seconds of batches and steps, from the beginning of the first step to the end of the last.

    Attributes:
        making_s: the thread of the first producer makes batches: from the request for samples until
            the features are on the data device.
        producing_s: the same without reading: the data device works.
        training_s: steps, until their device has finished.
        hidden_s: a step runs and a later batch is produced. The batches of a step are ready before
            the step, so that all common time counts.
        window_s: from the first step to the last.
        overlapped_steps: number of steps during which a later batch is produced.
        interval: the times of all steps after the first.
    """

    making_s: float
    producing_s: float
    training_s: float
    hidden_s: float
    window_s: float
    steps: int
    overlapped_steps: int
    interval: Interval

    @property
    def efficiency(self) -> float:
        """Time of the slower of making and training, divided by the time of both together."""
        return max(self.making_s, self.training_s) / self.window_s


def trial_times(spans: Sequence[Span], data_device: str, interval: Interval) -> TrialTimes:
    """Return the times of steps and of the batches of a data device.

    Args:
        spans: of a clock.
        interval: of the same clock.
    """
    of_device = [span for span in spans if span.lane == data_device]
    read = {span.number: span.start_s for span in of_device if span.kind == "read"}
    produced = [span for span in of_device if span.kind == "produce"]
    making = [(read[span.number], span.end_s) for span in produced]
    producing = [(span.start_s, span.end_s) for span in produced]
    training = [(span.start_s, span.end_s) for span in step_spans(spans)]
    window = (training[0][0], training[-1][1])
    return TrialTimes(
        making_s=overlap_s(making, [window]),
        producing_s=overlap_s(producing, [window]),
        training_s=sum(end - start for start, end in training),
        hidden_s=overlap_s(producing, training),
        window_s=window[1] - window[0],
        steps=len(training),
        overlapped_steps=sum(overlap_s(producing, [step]) > 0 for step in training),
        interval=interval,
    )


def overlap_s(left: Sequence[Period], right: Sequence[Period]) -> float:
    """Return the seconds that two lists of periods have in common; the periods of one list must not
    overlap.
    """
    common = 0.0
    for start, end in left:
        common += sum(max(0.0, min(end, b) - max(start, a)) for a, b in right)
    return common


class CollectLosses:
    """A hook that keeps the loss of each step."""

    pause_kind = FIRST_STEP

    def __init__(self) -> None:
        self.losses: list[float] = []

    def is_due(self, end: StepEnd) -> bool:
        return True

    def __call__(self, end: StepEnd) -> None:
        self.losses.append(float(end.metrics["loss"]))


class Deadline(StopRequest):
    """Stops after MAX_S, but not before MIN_STEPS."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0
        self._end_s = time.perf_counter() + MAX_S

    def due(self) -> bool:
        return self._steps >= MIN_STEPS and time.perf_counter() > self._end_s

    def observe(self, outcome: tf.Tensor) -> None:
        self._steps += 1


def check_pipeline(trial: Trial, steps: int) -> Iterator[Check]:
    """Take steps from the start of the plan in the training loop, and check what they show."""
    setup = trial.setup
    timeline = Timeline()
    hook = CollectLosses()
    traces_before = trial.step.traces
    with trial.pipeline.open_feed(Pass()) as feed:
        interval = train_steps(
            setup,
            SynchronousStep(trial.step),
            feed,
            replace(setup.schedule, log_every=1),
            steps,
            timeline,
            [hook],
            Deadline(),
        )
    times = trial_times(timeline.newest(), trial.pipeline.producers[0].device, interval)
    new_shapes = trial.step.traces - traces_before
    found = f"{times.steps} steps, last loss {hook.losses[-1]:.3g}"
    if new_shapes:
        found += f"; {new_shapes} steps traced a new shape, which the times below include"
    yield required(
        all(map(math.isfinite, hook.losses)),
        "training steps",
        "batches of the corpus pass through the pipeline, and all losses are finite",
        found,
        "Start the run: `myxtts train` names the utterances of a batch whose loss is not finite.",
    )
    dual = setup.between_devices
    yield check_overlap(times, dual)
    expected = "any: one device does both"
    if dual:
        expected = f"at least {100 * MIN_EFFICIENCY:.0f} % of the slower stage's rate"
    yield recommended(
        times.efficiency >= MIN_EFFICIENCY or not dual,
        "efficiency",
        expected,
        f"{100 * times.efficiency:.0f} %: {times.making_s:.2f} s of making batches and "
        f"{times.training_s:.2f} s of training took {times.window_s:.2f} s",
        "The stages wait for each other in turn: try --prefetch-buffer-size 8, or more --buckets.",
    )
    slowest = "batches are made fast enough"
    if interval.bottleneck != "step":
        slowest = f"the slowest stage is {interval.bottleneck}"
    yield recommended(
        interval.wait_share <= MAX_WAIT_SHARE,
        "wait for batches",
        f"the model device waits at most {100 * MAX_WAIT_SHARE:.0f} % of the time",
        f"{100 * interval.wait_share:.1f} %; {slowest}",
        "`myxtts profile` measures each stage and recommends changes.",
    )
    producers = [producer.produce for producer in trial.pipeline.producers]
    step_functions = trial.step.functions(trial.batches)
    yield check_operations("audit of the producer", producers)
    yield check_operations("audit of the step", step_functions)
    if has_gpu_kernels():
        yield check_loop_copies("copies in the producer", producers[:1])
        yield check_loop_copies("copies in the step", step_functions)


def check_overlap(times: TrialTimes, dual: bool) -> Check:
    shorter_s = min(times.producing_s, times.training_s)
    expected = "batch n+1 is produced during step n"
    min_hidden_s = 0.0
    if dual:
        min_hidden_s = MIN_OVERLAP * shorter_s
        expected += f", for at least {100 * MIN_OVERLAP:.0f} % of the shorter of the two times"
    hidden = times.hidden_s / times.producing_s if times.producing_s else 0.0
    check = required
    to_do = "`myxtts profile --trace FILE` writes a timeline of all stages."
    # No producer can overlap steps for longer than it gets samples.
    if times.interval.bottleneck == "read":
        check = recommended
        to_do = "Reading is the slowest stage: raise --num-workers, or use --cache-dataset."
    return check(
        times.hidden_s > min_hidden_s,
        "overlap",
        expected,
        f"in {times.overlapped_steps} of {times.steps} steps; {times.hidden_s:.2f} s, which"
        f" hides {100 * hidden:.0f} % of the time of producing",
        to_do,
    )


def check_operations(name: str, functions: Sequence) -> Check:
    """Check that all operations of concrete functions have GPU kernels."""
    expected = "every operation has a GPU kernel for its types"
    if not has_gpu_kernels():
        found = "unknown: this build of TensorFlow has no list of GPU kernels"
        return recommended(
            False, name, expected, found, "Install the package tensorflow (not tensorflow-cpu)."
        )
    audits = [audit(function) for function in functions]
    total = sum(result.operations for result in audits)
    host_only = sum((result.host_only for result in audits), ())
    found = f"{len(host_only)} of {total:,} operations have no GPU kernel"
    if host_only:
        found += ": " + "; ".join(
            f"{operation.type} '{operation.name}' in {operation.function} ({operation.dtypes})"
            for operation in host_only[:5]
        )
    return required(
        not host_only, name, expected, found, "Replace these operations: a GPU cannot run them."
    )


def check_loop_copies(name: str, functions: Sequence) -> Check:
    """Count the copies between host and GPU memory in one call of each concrete function."""
    copies = [*chain.from_iterable(map(find_copies, functions))]
    to_host = sum(copy.to_host for copy in copies)
    found = f"{to_host} to the host, {len(copies) - to_host} to the GPU"
    in_loops = [copy for copy in copies if copy.to_host and copy.in_loop]
    if in_loops:
        lines = ", ".join(sorted({copy.source or copy.tensor for copy in in_loops})[:5])
        found += f"; {len(in_loops)} to the host in each iteration of a loop: {lines}"
    return recommended(
        not in_loops,
        name,
        "no loop copies from the GPU to the host, which would wait for the GPU in each iteration",
        found,
        "A GPU is slow at such loops: choose another network, such as --encoder lmu instead of"
        " gru.",
    )
