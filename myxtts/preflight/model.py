"""Section 3: the model of the configuration on its device, and the heaviest batches that the plan can ask for."""

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
from myxtts.batch import empty_batch
from myxtts.config.schema import Config
from myxtts.data.batch_plan import Plan
from myxtts.data.pipeline import Pipeline, ReplicaBatches
from myxtts.data.plan_iterator import Position
from myxtts.errors import TrainingError
from myxtts.models.layers import parameter_count
from myxtts.placement.audit import require_device
from myxtts.placement.replicas import make_replicas
from myxtts.placement.routes import Placement
from myxtts.preflight.checks import Check, check, remark
from myxtts.preflight.corpus import Loaded
from myxtts.tf_internals import device_memory_mib
from myxtts.training import loop
from myxtts.training.diagnostics import describe_batch, explain_out_of_memory
from myxtts.training.setup import TrainingSetup, set_up
from myxtts.training.state import TrainingState
from myxtts.training.step import Step, is_scaled

WITH_LOSS_SCALE = 12  # a scale of 2^15 is halved at each step that overflows, until one does not
HEADROOM = 0.05  # of a GPU's memory: fragments that no allocation of a longer run can use


@dataclass(frozen=True)
class Bench:
    """All that a run has when its first step comes, and what the heaviest step took.

    Attributes:
        step_s: seconds of a heaviest step, traced and warm.
        batches: of its last round, one on each model device.
    """

    placement: Placement
    setup: TrainingSetup
    pipeline: Pipeline
    step: Step
    step_s: float
    batches: list[dict[str, tf.Tensor]]


class Taken(NamedTuple):
    """Some steps on one batch: the losses and norm of the last, and seconds of the first and the last."""

    outcome: dict[str, float]
    first_s: float
    last_s: float


def check_model(loaded: Loaded, placement: Placement) -> Generator[Check, None, Bench | None]:
    """Builds what a run builds, and takes steps on the heaviest batches; gives None where that failed."""
    config, corpus = loaded.config, loaded.corpora.training
    used_before_mib = process_peak_mib()
    replicas = make_replicas(placement.routes)
    setup = set_up(config, loaded.start, replicas, loaded.corpora)
    state = setup.state
    yield check_variables(state, config.model.model_size)
    yield check_outputs(state)
    yield check_checkpoint_room(state, config)
    pipeline = setup.training_pipeline(synchronize=True)
    step = setup.make_step()
    for name in used_devices(placement) if placement.on_gpu else ():
        tf.config.experimental.reset_memory_stats(name[1:])
    built_mib = process_peak_mib()
    for bucket in heaviest_buckets(corpus.plan):
        rounds = full_step(bucket, corpus.plan, pipeline, config.training.gradient_accumulation)
        try:
            magnitudes = magnitudes_of(state)
            taken = take_steps(state, step, rounds, setup.schedule)
        except tf.errors.ResourceExhaustedError as error:
            refused = loop.StepOutOfMemory(state.step + 1, bucket, error)
            raise TrainingError(explain_out_of_memory(error, placement, describe_batch(refused, corpus))) from error
        rows, samples, tokens = corpus.plan.shape(bucket)
        shape = f"{len(rounds)} x {rows} utterances of up to {samples / SAMPLE_RATE_HZ:.1f} s and {tokens} tokens"
        yield check_update(state, taken, magnitudes, shape)
    if placement.on_gpu:
        yield from check_gpu_memory(placement)
    else:
        yield check_process_memory(used_before_mib, built_mib)
    return Bench(placement, setup, pipeline, step, taken.last_s, loop.batches_of(rounds)[-1])


def check_variables(state: TrainingState, size: str) -> Check:
    """Everything that a step changes lies on the model devices, or `set_up` had raised PlacementError."""
    groups = {"variables": state.model.variables, "optimizer slots": state.optimizer.variables}
    groups["averages"] = state.averages
    state.require_devices()
    models = " and ".join(state.replicas.devices)
    counts = ", ".join(f"{len(group)} {name}" for name, group in groups.items() if group)
    return check(
        True,
        "variables",
        f"the model '{size}', its optimizer and averages on {models}",
        f"{parameter_count(state.model):,} parameters; {counts}, all on {models}",
    )


def check_outputs(state: TrainingState) -> Check:
    """A forward pass op by op, so that each output has a device that can be asked."""
    with tf.device(state.device):
        losses, outputs = state.model(empty_batch(state.model.BATCH_FIELDS))
    named = {**losses, **outputs}
    require_device(state.device, named.items())
    return check(True, "outputs", f"those of a forward pass on {state.device}", f"{', '.join(named)}, all there")


def check_checkpoint_room(state: TrainingState, config: Config) -> Check:
    """All checkpoints that a run keeps, the best one, and the one that is being written."""
    groups = state.variables()
    one = sum(v.shape.num_elements() * v.dtype.size for group in groups.values() for v in group.values())
    needed_mib = (config.run.keep_checkpoints + 2) * one / 2**20
    runs = Path(config.run.runs_dir).resolve()
    there = next(folder for folder in (runs, *runs.parents) if folder.exists())
    free_mib = shutil.disk_usage(there).free / 2**20
    return check(
        free_mib > needed_mib,
        "room for checkpoints",
        f"{needed_mib:,.0f} MiB: {config.run.keep_checkpoints + 2} of {one / 2**20:,.1f} MiB",
        f"{free_mib:,.0f} MiB free",
        "Make room, choose another --runs-dir, or keep fewer by --keep-checkpoints.",
    )


def heaviest_buckets(plan: Plan) -> list[int]:
    """The bucket of the longest utterances, which attention finds heaviest; after it the one of the most samples in
    all, where that is another: with --batch-seconds short buckets may hold more."""
    used = np.unique(plan.epoch(0).step_bucket)
    rows, samples = zip(*(plan.shape(int(bucket))[:2] for bucket in used), strict=True)
    longest, most = used[np.argmax(samples)], used[np.argmax(np.multiply(rows, samples))]
    most = longest if np.multiply(rows, samples).max() == math.prod(plan.shape(int(longest))[:2]) else most
    return [int(longest)] if longest == most else [int(longest), int(most)]


def full_step(bucket: int, plan: Plan, pipeline: Pipeline, accumulation: int) -> list[ReplicaBatches]:
    """The rounds of a step of a bucket, one of them several times where the corpus has no complete step of it."""
    epoch = plan.epoch(0)
    utterances = np.where(epoch.step_bucket == bucket, np.diff(epoch.step_start), -1)
    with pipeline.open_feed(Position(0, int(utterances.argmax()))) as feed:
        rounds = loop.next_microbatches(feed)
    return [rounds[number % len(rounds)] for number in range(accumulation)]


def take_steps(state: TrainingState, step: Step, rounds: Sequence[ReplicaBatches], schedule: loop.Schedule) -> Taken:
    """Two steps, or as many as a loss scale takes to settle; the first of them may trace."""
    seconds = []
    for _ in range(WITH_LOSS_SCALE if is_scaled(state.optimizer) else 2):
        started_s, done = time.perf_counter(), int(state.optimizer.iterations)
        outcome = take_step(state, step, rounds, schedule)
        seconds.append(time.perf_counter() - started_s)
        if len(seconds) > 1 and int(state.optimizer.iterations) > done:
            break
    return Taken(outcome, seconds[0], seconds[-1])


def take_step(
    state: TrainingState, step: Step, rounds: Sequence[ReplicaBatches], schedule: loop.Schedule
) -> dict[str, float]:
    """One step at the learning rate of a run's first, until its losses are read."""
    rate, decay = schedule.learning_rate(0), schedule.ema_decay(0)
    outcome = step.read(step(loop.batches_of(rounds), state.step + 1, rate, decay))
    state.advance(rounds[0][0].planned.step)
    return outcome


def magnitudes_of(state: TrainingState) -> np.ndarray:
    """float64 [trained variables]: the sum of each one's absolute values, not finite where one of them is not.

    In float32 a first step's change, 1e-6 of a weight, would be lost in the sum.
    """
    with tf.device(state.device):
        return np.array([tf.reduce_sum(tf.abs(tf.cast(v.value, tf.float64))).numpy() for v in state.trained])


def check_update(state: TrainingState, taken: Taken, before: np.ndarray, shape: str) -> Check:
    after = magnitudes_of(state)
    finite = all(map(math.isfinite, taken.outcome.values())) and bool(np.isfinite(after).all())
    moved = int((after != before).sum())
    losses = ", ".join(f"{name} {value:.3g}" for name, value in taken.outcome.items())
    return check(
        finite and moved > 0,
        f"heaviest step, {shape}",
        "losses, gradient and weights are finite after an update that moves the weights",
        f"{losses}; {moved} of {len(after)} weights moved; {taken.first_s:.1f} s at first, then {taken.last_s:.2f} s",
        "Listen to the longest utterances; try --precision float32 or a lower --learning-rate.",
    )


def used_devices(placement: Placement) -> dict[str, str]:
    """Name of each device of the routes, and what it does."""
    roles: dict[str, list[str]] = {}
    for route in placement.routes:
        roles.setdefault(route.data, []).append("batches")
        roles.setdefault(route.model, []).append("model")
    return {name: " and ".join(dict.fromkeys(own)) for name, own in roles.items()}


def check_gpu_memory(placement: Placement) -> Iterator[Check]:
    """The most that was in use on each device while the heaviest steps were made and taken."""
    for name, role in used_devices(placement).items():
        peak_mib = tf.config.experimental.get_memory_info(name[1:])["peak"] / 2**20
        limit_mib = device_memory_mib(name)
        headroom_mib = limit_mib - peak_mib
        yield remark(
            headroom_mib > HEADROOM * limit_mib,
            f"memory of {name} ({role})",
            f"{100 * HEADROOM:.0f} % of {limit_mib:,.0f} MiB or more left",
            f"peak {peak_mib:,.0f} MiB, {headroom_mib:,.0f} MiB left",
            "Lower --batch-size or --max-seconds, or add --gradient-checkpointing.",
        )


def check_process_memory(before_mib: float, built_mib: float) -> Check:
    """On the CPU: the peak of the whole process, in which all logical devices share one memory."""
    peak_mib, free_mib = process_peak_mib(), free_memory_mib()
    left = "what is left is not known here" if free_mib is None else f"{free_mib:,.0f} MiB left on this machine"
    return remark(
        free_mib is None or free_mib > HEADROOM * peak_mib,
        "memory of the process",
        f"{100 * HEADROOM:.0f} % of its peak or more left",
        f"peak {peak_mib:,.0f} MiB, of it {built_mib - before_mib:,.0f} for the model "
        f"and {peak_mib - built_mib:,.0f} for the heaviest steps with their tracing; {left}",
        "Lower --batch-size or --max-seconds, or add --gradient-checkpointing.",
    )


def process_peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, KiB on Linux


def free_memory_mib() -> float | None:
    """Memory that could be had without swapping; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith("MemAvailable:")), None)
