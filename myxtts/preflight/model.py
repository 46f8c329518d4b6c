"""Section 3: the model on its device, and training steps on the heaviest batches of the plan."""

import math
import resource
import shutil
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.batch import Batch, empty_batch
from myxtts.clock import Clock
from myxtts.config.schema import Config
from myxtts.data.batch_plan import Pass, Plan, Position
from myxtts.data.pipeline import Pipeline
from myxtts.errors import TrainingError
from myxtts.machine import available_memory_mib
from myxtts.models.layers import parameter_count
from myxtts.placement.audit import require_device
from myxtts.placement.routes import Placement
from myxtts.preflight.checks import Check, recommended, required
from myxtts.preflight.prerequisites import existing_parent
from myxtts.tf_internals import device_memory_mib
from myxtts.training import loop
from myxtts.training.diagnostics import describe_batch, explain_out_of_memory, segments_of
from myxtts.training.memory_forecast import MemoryForecast
from myxtts.training.schedule import ConstantRates, Schedule
from myxtts.training.setup import OpenRun, RunCorpora, TrainingSetup
from myxtts.training.state import TrainingState
from myxtts.training.step import Step, is_scaled

MAX_SCALED_STEPS = 12  # each step that overflows halves the initial loss scale of 2^15
HEADROOM = 0.05  # of a GPU's memory, for fragmentation in longer runs


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
        handed: the first microbatch, on the model devices.
    """

    metrics: dict[str, float]
    first_s: float
    last_s: float
    handed: list[Batch]


def check_model(run: OpenRun, corpora: RunCorpora) -> Generator[Check, None, Trial | None]:
    """Set up a run and train on the heaviest batches; returns the trial."""
    config, placement = run.config, run.placement
    initial_mib = process_peak_mib()
    plan = corpora.training.plan
    setup = run.set_up(corpora)
    state = setup.state
    yield check_variables(state, config.model.model_size)
    yield check_outputs(state)
    for name, line in setup.choices.items():
        yield required(
            True, name, "the fastest implementation that works on the model device", line
        )
    yield check_checkpoint_space(state, config)
    pipeline = setup.training_pipeline(synchronize=True)
    step = setup.make_step()
    for name in device_roles(placement) if placement.on_gpu else ():
        tf.config.experimental.reset_memory_stats(name[1:])
    built_mib = process_peak_mib()
    for bucket in heaviest_buckets(plan):
        batches = full_step(bucket, plan, pipeline, step, config.training.gradient_accumulation)
        try:
            magnitudes = magnitudes_of(state)
            result = take_steps(state, step, batches, setup.schedule)
        except tf.errors.ResourceExhaustedError as error:
            failure = loop.StepOutOfMemory(state.step + 1, bucket, error)
            batch = describe_batch(failure, corpora.training)
            raise TrainingError(
                explain_out_of_memory(error, placement, batch, can_resume=False)
            ) from error
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
    return Trial(setup, pipeline, step, result.last_s, result.handed)


def check_variables(state: TrainingState, size: str) -> Check:
    """Check that everything a step changes is on the model devices; raises PlacementError
    if not.
    """
    slots = [v for group in state.groups for v in group.optimizer.variables]
    groups = {"variables": state.model.variables, "optimizer slots": slots}
    groups["averages"] = state.averages
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
    groups = state.variables()
    size_mib = (
        sum(
            v.shape.num_elements() * v.dtype.size
            for group in groups.values()
            for v in group.values()
        )
        / 2**20
    )
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
    longest, largest = used[np.argmax(samples)], used[np.argmax(np.multiply(rows, samples))]
    if np.multiply(rows, samples).max() == math.prod(plan.shape(int(longest))[:2]):
        largest = longest
    return [int(longest)] if longest == largest else [int(longest), int(largest)]


def full_step(
    bucket: int, plan: Plan, pipeline: Pipeline, step: Step, accumulation: int
) -> loop.StepBatches:
    """Return a full step of a bucket; its microbatches are repeated if the corpus has no full step
    of it.
    """
    epoch = plan.epoch(0)
    utterances = np.where(epoch.step_bucket == bucket, np.diff(epoch.step_start), -1)
    with pipeline.open_feed(Pass(Position(0, int(utterances.argmax())))) as feed:
        taken = loop.LookAhead(feed, step, Clock()).take(running=None, is_last=True)
    microbatches = taken.microbatches
    return taken._replace(
        microbatches=[microbatches[number % len(microbatches)] for number in range(accumulation)]
    )


def take_steps(
    state: TrainingState, step: Step, batches: loop.StepBatches, schedule: Schedule
) -> StepResult:
    """Take two steps, or more until a loss scale no longer overflows. The first step may trace."""
    seconds, rates, handed = [], initial_rates(schedule), step.hand_over(batches.features[0])
    optimizers = [group.optimizer for group in state.groups]
    for _ in range(MAX_SCALED_STEPS if is_scaled(state.optimizer) else 2):
        started_s, updates = (
            time.perf_counter(),
            [int(optimizer.iterations) for optimizer in optimizers],
        )
        metrics, handed = take_step(state, step, handed, batches, rates)
        seconds.append(time.perf_counter() - started_s)
        updated = (
            int(optimizer.iterations) > before
            for optimizer, before in zip(optimizers, updates, strict=True)
        )
        if len(seconds) > 1 and all(updated):
            break
    return StepResult(metrics, seconds[0], seconds[-1], handed)


def take_step(
    state: TrainingState,
    step: Step,
    first: Sequence[Batch],
    batches: loop.StepBatches,
    rates: ConstantRates,
) -> tuple[dict[str, float], list[Batch]]:
    """Take one step, and wait for its losses.

    Args:
        first: the first of its microbatches, on the model devices.

    Returns:
        The losses, and the first microbatch of the next step on the model devices.
    """
    outcome, handed = step(first, batches.features[1:], state.step + 1, rates)
    state.advance(batches.microbatches[0][0].planned.step)
    return step.read(outcome), handed


def initial_rates(schedule: Schedule) -> ConstantRates:
    """Return the rates of the first step."""
    return ConstantRates(schedule.learning_rate(0), schedule.ema_decay(0))


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
    observer's beside it.
    """
    for device, role in device_roles(placement).items():
        peak_mib = tf.config.experimental.get_memory_info(device[1:])["peak"] / 2**20
        limit_mib = device_memory_mib(device)
        observer_mib = forecast.observer_mib if device == placement.observer else 0.0
        headroom_mib = limit_mib - peak_mib - observer_mib
        beside = f" and about {observer_mib:,.0f} MiB for the observer" if observer_mib else ""
        yield recommended(
            headroom_mib > HEADROOM * limit_mib,
            f"memory of {device} ({role})",
            f"at least {100 * HEADROOM:.0f} % of {limit_mib:,.0f} MiB is free",
            f"peak {peak_mib:,.0f} MiB{beside}, {headroom_mib:,.0f} MiB free",
            "Lower --batch-size or --max-seconds, or add --gradient-checkpointing.",
        )


def check_process_memory(initial_mib: float, built_mib: float, forecast: MemoryForecast) -> Check:
    """Check the peak memory of the process. On the CPU, all logical devices share one memory."""
    peak_mib, free_mib = process_peak_mib(), available_memory_mib()
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
    return (
        peak / 2**20 if sys.platform == "darwin" else peak / 2**10
    )  # bytes on macOS, KiB on Linux
