"""Sections 3 and 5: the model on its device, steps on the heaviest batches of the plan, and steps
through the real pipeline, with the overlap of its stages and the audit of their operations.
"""

import math
import resource
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, product

import numpy as np
import tensorflow as tf

from myxtts.base.machine import available_memory_mib
from myxtts.base.progress import Position
from myxtts.base.tf_internals import device_memory_mib
from myxtts.batches.pipeline import Pipeline, step_batches
from myxtts.batches.plan import Pass, Plan
from myxtts.config.schema import Config
from myxtts.devicefeed.audit import require_device
from myxtts.devicefeed.contract import Batch
from myxtts.devicefeed.handover import HANDED_OVER_AHEAD
from myxtts.devicefeed.producer import ReplicaBatches
from myxtts.devicefeed.routes import Placement
from myxtts.devicefeed.times import Span, Timeline
from myxtts.run.description import describe_batch, out_of_memory
from myxtts.run.memory import MemoryForecast
from myxtts.run.observation import Snapshot, make_validation
from myxtts.run.optimizer import is_scaled
from myxtts.run.schedule import ConstantRates, Schedule
from myxtts.run.setup import OpenRun, RunCorpora, TrainingSetup
from myxtts.run.shares import forget_peaks
from myxtts.run.state import TrainingState
from myxtts.run.step import Step
from myxtts.tasks.contract import empty_batch
from myxtts.tasks.layers import parameter_count
from myxtts.trial.preflight.checks import Check, recommended, required
from myxtts.trial.preflight.kernels import audit
from myxtts.trial.preflight.prerequisites import existing_parent
from myxtts.trial.steps import SynchronousStep, step_spans, train_steps

# Each step that overflows halves the initial loss scale of 2^15.
MAX_SCALED_STEPS = 12

# Space for logs, samples and cached manifests, in addition to the checkpoints.
MIN_FREE_MIB = 1024

# The order of a producer's operations varies, and with it what they hold: tensors of 11 to 14 MiB
# for a heaviest batch of a tiny recogniser, of which a full step produces about six.
GPU_REPEATS = 3

# Fraction of a GPU's memory that should stay free, for fragmentation in longer runs.
HEADROOM = 0.05
LESS_MEMORY = "Lower --batch-size or --max-seconds, or add --gradient-checkpointing."

# The pipeline runs for at most 60 s if all steps are as long as the heaviest; most are shorter.
MIN_STEPS = 4
MAX_S = 60.0

MIN_OVERLAP = 0.5
MAX_WAIT_SHARE = 0.1


@dataclass(frozen=True)
class Trial:
    """A run that has trained on its heaviest batches.

    Attributes:
        step_s: seconds of the last heavy step, without tracing.
        batches: a microbatch of this step, one on each model device.
        observe: copies the weights for the observer, and validates a heaviest held-out batch.
    """

    setup: TrainingSetup
    pipeline: Pipeline
    step: Step
    step_s: float
    batches: list[Batch]
    observe: Callable[[], None]


# The run is set up as `train` does, and its variables are checked. Then the heaviest batches of the
# plan, one or two buckets, pass the pipeline, with as many other batches in memory as in a run and
# with an observation behind them. Two steps are taken on each, and the weights are compared with
# those before. What this leaves of the memory is checked last. The caller gets the trained objects,
# because the sections after this one need them.
def check_model(run: OpenRun, corpora: RunCorpora) -> Generator[Check, None, Trial | None]:
    """Set up a run and train on the heaviest batches; returns the trial."""
    config = run.config
    placement = run.placement
    plan = corpora.training.plan
    setup = run.set_up(corpora)
    state = setup.state
    yield check_tensors(state, config.model.model_size)
    for name, line in setup.implementation_notes.items():
        expected = "the fastest implementation that works on the model device"
        yield required(True, name, expected, line)
    yield check_disk_space(state, config)
    pipeline = setup.training_pipeline(synchronize=True)
    step = setup.make_step()
    forget_peaks(placement, [device.name for device in placement.devices])
    observe = heaviest_observation(setup) if config.run.uses_held_out else lambda: None
    for bucket in heaviest_buckets(plan):
        batch = describe_batch(plan, state.step + 1, bucket)
        try:
            for _ in range(GPU_REPEATS if placement.on_gpu else 1):
                microbatches = full_step(bucket, setup, pipeline, observe)
            magnitudes = magnitudes_of(state)
            metrics, seconds, first = take_steps(
                state, step, microbatches, setup.schedule, config.training.gradient_accumulation
            )
        except tf.errors.ResourceExhaustedError as error:
            raise out_of_memory(error, setup.run, batch) from error
        yield check_update(state, metrics, seconds, magnitudes, batch)
    if placement.on_gpu:
        yield from check_gpu_memory(placement, setup)
    else:
        yield check_process_memory(setup.memory)
    return Trial(setup, pipeline, step, seconds[-1], first, observe)


def check_tensors(state: TrainingState, size: str) -> Check:
    """Check that variables and the outputs of a forward pass are on the model devices."""
    state.require_devices()
    with tf.device(state.device):
        losses, outputs = state.model(empty_batch(state.model.BATCH_FIELDS))
    require_device(state.device, {**losses, **outputs}.items())
    devices = " and ".join(state.replicas.devices)
    return required(
        True,
        "variables and outputs",
        f"the model '{size}', its optimizer, averages and outputs are on {devices}",
        f"{parameter_count(state.model):,} parameters, all on {devices}",
    )


def check_disk_space(state: TrainingState, config: Config) -> Check:
    """Check the space for kept checkpoints, the best and the one being written, and for logs."""
    variables = chain.from_iterable(group.values() for group in state.variables().values())
    size_mib = sum(v.shape.num_elements() * v.dtype.size for v in variables) / 2**20
    count = config.run.keep_checkpoints + 2
    folder = existing_parent(config.run.folder)
    free_mib = shutil.disk_usage(folder).free / 2**20
    needed_mib = count * size_mib + MIN_FREE_MIB
    return required(
        free_mib > needed_mib,
        "free disk space",
        f"{needed_mib:,.0f} MiB, with {count} checkpoints of {size_mib:,.1f} MiB",
        f"{free_mib:,.0f} MiB free",
        "Free some disk space, choose another --runs-dir, or lower --keep-checkpoints.",
    )


def heaviest_buckets(plan: Plan) -> list[int]:
    """Return the buckets with the heaviest batches.

    The first has the longest utterances, which are the heaviest for attention. The second, if it is
    another one, has the most samples per batch: with --batch-seconds, short buckets may have more.
    """
    used = np.unique(plan.epoch(0).step_bucket)
    shapes = np.array([plan.shape(int(bucket))[:2] for bucket in used])  # rows and samples
    total = shapes.prod(axis=1)
    longest = np.argmax(shapes[:, 1])
    largest = np.argmax(total)
    heaviest = [longest]
    if total[largest] > total[longest]:
        heaviest.append(largest)
    return [int(used[number]) for number in heaviest]


def longest_step(bucket: int, plan: Plan, epoch: int = 0) -> Position:
    planned = plan.epoch(epoch)
    utterances = np.where(planned.step_bucket == bucket, np.diff(planned.step_start), -1)
    return Position(epoch, int(utterances.argmax()))


def heaviest_observation(setup: TrainingSetup) -> Callable[[], None]:
    """Return `Trial.observe`."""
    snapshot, pipeline = Snapshot.of_run(setup), setup.validation_pipeline()
    assert setup.corpora.held_out is not None
    plan = setup.corpora.held_out.plan
    start = longest_step(heaviest_buckets(plan)[-1], plan)
    validation = make_validation(setup, snapshot, pipeline, Pass(start, epochs=1), 1)

    def observe() -> None:
        with tf.device(snapshot.device):
            # A busy model device sends all weights before the first one is assigned.
            tuple(map(tf.identity, setup.state.inference_variables().values()))
        snapshot.take()
        validation.evaluate()

    return observe


# The feed is opened some steps before the wanted one, so that its buffers are full when that step
# comes: `others` steps are taken and dropped. Batches that a real step would have taken ahead are
# held until the end, and the observer runs while they are.
def full_step(
    bucket: int, setup: TrainingSetup, pipeline: Pipeline, observe: Callable[[], None]
) -> list[ReplicaBatches]:
    """Return the microbatches of the longest step of a bucket; call `observe` behind it.

    The data devices hold as much as in a run, with a batch of the observer.
    """
    plan, config = setup.corpora.training.plan, setup.config
    of_buffers = config.data.prefetch_buffer_size * len(setup.replicas.routes[0].data_devices)
    others = math.ceil((of_buffers + HANDED_OVER_AHEAD + 2) / config.training.gradient_accumulation)
    epoch, step, _ = longest_step(bucket, plan, 1 + others // plan.steps_per_epoch)
    first = epoch * plan.steps_per_epoch + step - others
    start = Position(first // plan.steps_per_epoch, first % plan.steps_per_epoch)
    with pipeline.open_feed(Pass(start)) as feed:
        *before, microbatches = islice(step_batches(feed), others + 1)
        del before
        _ahead = list(islice(feed, HANDED_OVER_AHEAD))
        feed.wait_until_full(MAX_S)
        observe()
        return microbatches


def take_steps(
    state: TrainingState,
    step: Step,
    microbatches: Sequence[ReplicaBatches],
    schedule: Schedule,
    accumulation: int,
) -> tuple[dict[str, float], list[float], list[Batch]]:
    """Take two steps, or more until a loss scale no longer overflows; the first one may trace.

    Microbatches are repeated if the corpus has no full step of the bucket. Return losses and norm
    of the last step, the seconds of each step, and a microbatch.
    """
    rates = ConstantRates(schedule.learning_rate(0), schedule.ema_decay(0))
    features = [[batch.features for batch in batches] for batches in microbatches]
    handed = [step.hand_over(features[i % len(features)]) for i in range(1 + HANDED_OVER_AHEAD)]
    repeated = [handed[i % len(handed)] for i in range(accumulation)]
    seconds = []
    for _ in range(MAX_SCALED_STEPS if is_scaled(state.optimizer) else 2):
        before = int(state.optimizer.iterations)
        started_s = time.perf_counter()
        outcome = step(repeated, state.step + 1, rates)
        state.advance(microbatches[0][0].tag.step)
        metrics = step.read(outcome)
        seconds.append(time.perf_counter() - started_s)
        if len(seconds) > 1 and int(state.optimizer.iterations) > before:
            break
    return metrics, seconds, handed[0]


def magnitudes_of(state: TrainingState) -> np.ndarray:
    """Return the sum of the absolute values of each trained variable, float64 [trained variables].

    Float32 would lose the first update of a weight, 1e-6.
    """
    with tf.device(state.device):
        return np.array(
            [tf.reduce_sum(tf.abs(tf.cast(v.value, tf.float64))).numpy() for v in state.trained]
        )


def check_update(
    state: TrainingState,
    metrics: Mapping[str, float],
    seconds: Sequence[float],
    magnitudes_before: np.ndarray,
    batch: str,
) -> Check:
    magnitudes = magnitudes_of(state)
    changed = int((magnitudes != magnitudes_before).sum())
    losses = ", ".join(f"{name} {value:.3g}" for name, value in metrics.items())
    return required(
        changed > 0 and all(map(math.isfinite, [*metrics.values(), *magnitudes])),
        f"heaviest step{batch}",
        "losses, gradient and weights are finite, and the update changes weights",
        f"{losses}; {changed} of {len(magnitudes)} variables changed; "
        f"first step {seconds[0]:.1f} s, last step {seconds[-1]:.2f} s",
        "Listen to the longest utterances; try --precision float32 or a lower --learning-rate.",
    )


def check_gpu_memory(placement: Placement, setup: TrainingSetup) -> Iterator[Check]:
    """Check the peak of each device in the heaviest steps, and what evaluations take besides."""
    for device in (device.name for device in placement.devices):
        peak_mib = tf.config.experimental.get_memory_info(device[1:])["peak"] / 2**20
        limit_mib = device_memory_mib(device)
        evaluation_mib = 0.0
        if device == setup.observer:
            evaluation_mib = setup.memory.evaluation_mib
        headroom_mib = limit_mib - peak_mib - evaluation_mib
        yield recommended(
            headroom_mib > HEADROOM * limit_mib,
            f"memory of {device}",
            f"at least {100 * HEADROOM:.0f} % of {limit_mib:,.0f} MiB is free",
            f"peak {peak_mib:,.0f} MiB and about {evaluation_mib:,.0f} MiB for evaluations,"
            f" {headroom_mib:,.0f} MiB free",
            LESS_MEMORY,
        )


def check_process_memory(forecast: MemoryForecast) -> Check:
    """Check the peak memory of the process. On the CPU, all logical devices share one memory."""
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    free_mib = available_memory_mib()
    return recommended(
        free_mib > HEADROOM * peak_mib,
        "memory of the process",
        f"at least {100 * HEADROOM:.0f} % of its peak is free",
        f"peak {peak_mib:,.0f} MiB, with tracing; free: {free_mib:,.0f} MiB; a run with"
        f" full buffers was forecast to take {forecast} more than the model",
        LESS_MEMORY,
    )


# Ordinary steps from the start of the plan, in the real loop. Their spans give the overlap of
# producing and training, and the time without a batch. At the end, the compiled functions of
# producer and step are audited for operations without GPU kernels.
def check_pipeline(trial: Trial, steps: int) -> Iterator[Check]:
    """Take steps from the start of the plan in the training loop, and check what they show."""
    setup = trial.setup
    timeline = Timeline(sys.maxsize)
    traces_before = trial.step.traces
    steps = min(steps, max(MIN_STEPS, int(MAX_S / trial.step_s)))
    with trial.pipeline.open_feed(Pass()) as feed:
        step = SynchronousStep(trial.step)
        # The loop raises an error about a loss that is not finite at its report.
        schedule = replace(setup.schedule, log_every=1)
        interval = train_steps(setup, step, feed, schedule, steps, timeline)
    yield required(
        True,
        "training steps",
        "batches of the corpus pass through the pipeline, and all losses are finite",
        f"{steps} steps, of which {trial.step.traces - traces_before} traced a new shape",
    )
    device = trial.pipeline.producers[0].device
    yield check_overlap(timeline.newest(), device, interval.bottleneck, setup.between_devices)
    yield recommended(
        interval.wait_share <= MAX_WAIT_SHARE,
        "wait for batches",
        f"the model device waits at most {100 * MAX_WAIT_SHARE:.0f} % of the time",
        f"{100 * interval.wait_share:.1f} %; the slowest stage is {interval.bottleneck}",
        "`myxtts profile` measures each stage and recommends changes.",
    )
    yield check_operations("audit of the producer", [p.produce for p in trial.pipeline.producers])
    yield check_operations("audit of the step", trial.step.functions(trial.batches))


# Two lists of spans come in on one timeline: when the data device produced, and when steps ran.
# What both have in common is time that the second device saved. It must be more than nothing, and
# with a device of its own at least half of the shorter of the two.
def check_overlap(spans: Sequence[Span], data_device: str, bottleneck: str, dual: bool) -> Check:
    """Check that a data device produces while steps run, by the spans and bottleneck of a clock.

    Batches are ready before their step, so all common time counts. `dual`: they are made on a
    device of their own.
    """
    producing = [s for s in spans if s.lane == data_device and s.kind == "produce"]
    training = step_spans(spans)
    window = Span("", "", training[0].start_s, training[-1].end_s)
    producing_s = common_s(producing, [window])
    training_s = sum(step.end_s - step.start_s for step in training)
    hidden_s = common_s(producing, training)
    overlapped = sum(common_s(producing, [step]) > 0 for step in training)
    expected = "batch n+1 is produced during step n"
    min_hidden_s = 0.0
    if dual:
        min_hidden_s = MIN_OVERLAP * min(producing_s, training_s)
        expected += f", for at least {100 * MIN_OVERLAP:.0f} % of the shorter of the two times"
    # No producer can overlap steps for longer than it gets samples.
    check = recommended if bottleneck == "read" else required
    return check(
        hidden_s > min_hidden_s,
        "overlap",
        expected,
        f"in {overlapped} of {len(training)} steps; {hidden_s:.2f} s of {producing_s:.2f} s of"
        f" producing and {training_s:.2f} s of training; the slowest stage is {bottleneck}",
        "If reading is slow, raise --num-workers or use --cache-dataset; `myxtts profile --trace"
        " FILE` writes a timeline of all stages.",
    )


def common_s(left: Sequence[Span], right: Sequence[Span]) -> float:
    """Return the seconds that two lists of spans have in common, each without overlap."""
    return sum(
        max(0.0, min(span.end_s, other.end_s) - max(span.start_s, other.start_s))
        for span, other in product(left, right)
    )


def check_operations(name: str, functions: Sequence) -> Check:
    """Check that all operations of concrete functions have GPU kernels."""
    expected = "every operation has a GPU kernel for its types"
    audits = [audit(function) for function in functions]
    host_only = [*chain.from_iterable(result.host_only for result in audits)]
    total = sum(result.operations for result in audits)
    examples = (
        f"; {operation.type} '{operation.name}' in {operation.function} ({operation.dtypes})"
        for operation in host_only[:5]
    )
    found = f"{len(host_only)} of {total:,} operations have no GPU kernel{''.join(examples)}"
    to_do = "Replace these operations: a GPU cannot run them."
    return required(not host_only, name, expected, found, to_do)
