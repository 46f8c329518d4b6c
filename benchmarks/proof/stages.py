"""Section 3: the seconds to produce (P), transfer (T) and consume (C) a batch, for each size of
model.

Each stage is timed in isolation, until its device has finished. What the step does on its device
comes from a trace of TensorFlow's profiler.
"""

import gc
import traceback
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks._flops import matmul_flops_per_s, step_flops
from benchmarks.proof import configs, trace
from benchmarks.proof.operations import tf32
from benchmarks.proof.runs import NO_TIME
from benchmarks.proof.section import Figure, Scope, SectionResult, table
from fakes.copies import find_copies
from fakes.toy_models import toy_models
from myxtts.config.schema import Config
from myxtts.devicefeed.routes import Route
from myxtts.run.memory import forecast_memory
from myxtts.tasks.contract import first_rows
from myxtts.tasks.layers import parameter_count
from myxtts.tasks.registry import task_of
from myxtts.trial.preflight.kernels import audit
from myxtts.trial.steps import (
    MeasurementWindow,
    ProfiledRun,
    SampleBatches,
    measure_isolated,
    measurement_window,
    open_run,
    time_step,
)

TITLE = "Stage times"
MODELS = (
    *(("tts", size) for size in ("tiny", "small", "normal", "big")),
    *(("asr", "normal"), ("vocoder", "normal")),
)
SMALL_MODELS = (("tts", "tiny"),)
BUCKETS = 2  # XLA compiles the alignment search once for each shape
STEPS, SMALL_STEPS = 20, 2
TRACED_STEPS = 3
LEAST_S = 25.0  # for one more model
# Time of a step with half of the rows, relative to that with all.
COMPUTE_BOUND, LAUNCH_BOUND = (0.65, 0.85)
PEAK_OVER_FORECAST = 2.0
# Copies to the host of a timed step: an element of its batch before it, and its outcome.
OWN_READS = 2


@dataclass(frozen=True)
class Rates:
    """Operations per second of matrix products on the model device."""

    float32: float
    tf32: float
    bfloat16: float


@dataclass(frozen=True)
class StageFigures:
    """A model's stages.

    Attributes:
        error: why it was not measured; then all other figures are empty.
        produce_s, transfer_s, step_s: median seconds of a batch.
        half_step_s: the step with half of the rows.
        flops: of a step; None if they cannot be counted.
        rate_share: of the rate of float32 products, in TF32 if it is on.
        operations, copies_to_host: of the step's functions, counted in their graphs; copies within
            a loop count once, and None is unknown.
        shapes: distinct batch shapes of the run.
    """

    task: str
    size: str
    error: str = ""
    parameters: int = 0
    rows: int = 0
    produce_s: float = float("nan")
    transfer_s: float = float("nan")
    step_s: float = float("nan")
    half_step_s: float = float("nan")
    flops: int | None = None
    rate_share: float | None = None
    operations: int = 0
    copies_to_host: int | None = None
    shapes: int = 0
    activity: trace.Activity = trace.NOTHING
    peak_mib: float | None = None
    forecast_mib: float = float("nan")

    @property
    def name(self) -> str:
        return f"{self.task} {self.size}"

    @property
    def half_ratio(self) -> float:
        return self.half_step_s / self.step_s

    @property
    def bound(self) -> str:
        if self.half_ratio >= LAUNCH_BOUND:
            return "launches"
        return "compute" if self.half_ratio <= COMPUTE_BOUND else "both"


def run(scope: Scope) -> SectionResult:
    device = configs.configure(scope).routes[0].model
    rates = measure_rates(scope, device)
    measured: list[StageFigures] = []
    for task, size in SMALL_MODELS if scope.small else MODELS:
        if measured and scope.left_s < LEAST_S:
            measured.append(StageFigures(task, size, NO_TIME))
            continue
        with configs.models(scope), toy_models() if scope.small else nullcontext():
            measured.append(measure_or_report(scope, task, size, rates))
        scope.record(result_of(scope, rates, measured))
    return result_of(scope, rates, measured)


def measure_rates(scope: Scope, device: str) -> Rates:
    size, repeats = (256, 2) if scope.small else (2048, 10)
    with tf.device(device):
        with tf32(False):
            exact = matmul_flops_per_s("float32", size, repeats)
        with tf32(True):
            rounded = matmul_flops_per_s("float32", size, repeats)
        return Rates(exact, rounded, matmul_flops_per_s("bfloat16", size, repeats))


def measure_or_report(scope: Scope, task: str, size: str, rates: Rates) -> StageFigures:
    """Measure a model; one that does not fit or fails leaves the others alone."""
    try:
        return measure(scope, task, size, rates)
    except Exception as error:  # the other models are still measured
        traceback.print_exc()
        first_line = (str(error).strip().splitlines() or [""])[0]
        return StageFigures(task, size, f"{type(error).__name__}: {first_line}")


def measure(scope: Scope, task: str, size: str, rates: Rates) -> StageFigures:
    config = configs.config_of(scope, task, size, data={"buckets": BUCKETS})
    gc.collect()  # the model before
    memory = PeakMemory(configs.configure(scope).routes[0].model)
    with open_run(config) as run:
        pipeline = run.setup.training_pipeline(synchronize=True)
        window = measurement_window(pipeline, SMALL_STEPS if scope.small else STEPS)
        times, samples = measure_isolated(run, pipeline, window)
        figures = StageFigures(
            task,
            size,
            parameters=parameter_count(run.setup.state.model),
            rows=int(samples[most_frequent_bucket(window)][0]["frames"].shape[0]),
            produce_s=float(np.median(times.produce_s)),
            transfer_s=float(np.median(times.transfer_s)),
            step_s=float(np.median(times.step_s)),
            shapes=len({tuple(batch["mel"].shape) for batch in chain(*samples.values())}),
            peak_mib=memory.peak_mib(),
            forecast_mib=device_forecast_mib(config, run),
        )
        return replace(figures, **inspect_step(run, window, samples, rates))


class PeakMemory:
    """The peak of TensorFlow's memory on a GPU from now on, beyond what it uses already."""

    def __init__(self, device: str):
        self._name = device[1:] if "GPU" in device else ""
        if self._name:
            tf.config.experimental.reset_memory_stats(self._name)
            self._before = tf.config.experimental.get_memory_info(self._name)["current"]

    def peak_mib(self) -> float | None:
        if not self._name:
            return None
        return (tf.config.experimental.get_memory_info(self._name)["peak"] - self._before) / 2**20


def most_frequent_bucket(window: MeasurementWindow) -> int:
    return int(np.bincount(window.measured_buckets).argmax())


def inspect_step(
    run: ProfiledRun, window: MeasurementWindow, samples: SampleBatches, rates: Rates
) -> dict[str, Any]:
    """Return what the step does on the batches of the most frequent bucket."""
    setup, step = run.setup, run.step
    bucket = most_frequent_bucket(window)
    batch = samples[bucket][0]
    fields = setup.state.model.BATCH_FIELDS
    with tf.device(run.route.data):
        half = first_rows(batch, fields, max(1, batch["frames"].shape[0] // 2))
    time_step(setup, step, [half])  # XLA compiles the new shape
    full_s = float(np.median([time_step(setup, step, [batch]) for _ in range(TRACED_STEPS)]))
    half_s = float(np.median([time_step(setup, step, [half]) for _ in range(TRACED_STEPS)]))
    try:
        flops: int | None = step_flops(setup.state, batch)
    except ValueError:  # products in a loop cannot be counted
        flops = None
    functions = step.functions([batch])
    copies = [copy for function in functions for copy in find_copies(function)]
    return {
        "step_s": full_s,
        "half_step_s": half_s,
        "flops": flops,
        "rate_share": None if flops is None else flops / full_s / rates.tf32,
        "operations": sum(audit(function).operations for function in functions),
        "copies_to_host": sum(copy.to_host for copy in copies),
        "activity": trace.trace(lambda: time_step(setup, step, [batch]), TRACED_STEPS),
    }


def device_forecast_mib(config: Config, run: ProfiledRun) -> float:
    """Return the forecast of a model device's memory: the state, and the forecast of a step."""
    setup, state = run.setup, run.setup.state
    extractor = task_of(config).extractor(config, training=True, load_teacher=setup.load_teacher)
    on_host = Route("/CPU:0", "/CPU:0")  # the preflight forecasts the memory of the host
    plan = setup.corpora.training.plan
    forecast = forecast_memory(config, plan, (on_host,), parameter_count(state.model), extractor)
    variables = chain(*(group.values() for group in state.variables().values()))
    state_bytes = sum(v.shape.num_elements() * v.dtype.size for v in variables)
    return state_bytes / 2**20 + forecast.parts_mib["for the step"]


def result_of(scope: Scope, rates: Rates, measured: list[StageFigures]) -> SectionResult:
    gflops = [f"{rate / 1e9:,.0f}" for rate in (rates.float32, rates.tf32, rates.bfloat16)]
    of_rates = "{} GFLOP/s in float32, {} with TF32, {} in bfloat16.".format(*gflops)
    stages = "model | parameters | rows | P, ms | T, ms | C, ms | share of rate | half the rows"
    counts = "model | operations | copies to host | kernels | device busy | copies to host, traced"
    lines = [
        f"Matrix products on the model device: {of_rates}",
        *table(f"{stages} | bound by", map(stage_row, measured)),
        "Half the rows: time of the step with half of the rows, relative to that with all. A step"
        f" that is bound by launches keeps its time (at least {LAUNCH_BOUND}), one that is bound by"
        f" compute does not (at most {COMPUTE_BOUND}).",
        *table(
            f"{counts} | XLA compilations | peak, MiB | forecast, MiB", map(device_row, measured)
        ),
        "Operations and copies are counted in the graph of the step; what follows them comes from a"
        " trace of it.",
    ]
    figures = [figure for item in measured for figure in figures_of(scope, item)]
    data = {"rates": asdict(rates), "models": [model_data(item) for item in measured]}
    return SectionResult(TITLE, lines, figures, data)


def stage_row(item: StageFigures) -> tuple:
    if item.error:
        return item.name, item.error, *[""] * 7
    share = "unknown" if item.rate_share is None else f"{item.rate_share:.1%}"
    times = (f"{1e3 * seconds:.2f}" for seconds in (item.produce_s, item.transfer_s, item.step_s))
    counts = f"{item.parameters:,}", item.rows
    return item.name, *counts, *times, share, f"{item.half_ratio:.2f}", item.bound


def device_row(item: StageFigures) -> tuple:
    if item.error:
        return item.name, *[""] * 8
    activity = item.activity
    counted = f"{item.operations:,}", shown(item.copies_to_host, "")
    busy = shown(activity.kernels, ",.0f"), shown(activity.busy, ".0%")
    traced = shown(activity.copies.get("to_host"), ".1f"), activity.compilations
    memory = shown(item.peak_mib, ",.0f"), f"{item.forecast_mib:,.0f}"
    return item.name, *counted, *busy, *traced, *memory


def shown(value: float | None, form: str) -> str:
    return "not shown" if value is None else format(value, form)


def figures_of(scope: Scope, item: StageFigures) -> list[Figure]:
    """Return the claims about a model."""
    if item.error:
        met = None if item.error == NO_TIME else False
        return [Figure.of(f"{item.name}: the stages run", item.error, "they run", met)]
    to_host, counted = item.activity.copies.get("to_host"), item.copies_to_host
    peak, memory = None, "not shown"
    if item.peak_mib is not None:
        peak = item.peak_mib / item.forecast_mib
        memory = f"{item.peak_mib:,.0f} MiB, {peak:.2f} of the forecast"
    return [
        Figure.of(
            f"{item.name}: a step copies to the host what its graph shows",
            f"{shown(counted, '')} in the graph; in a trace: {shown(to_host, '.1f')}",
            f"at most those of the graph and {OWN_READS} of the measurement",
            None if to_host is None or counted is None else to_host <= counted + OWN_READS,
        ),
        Figure.of(
            f"{item.name}: XLA compiles nothing at a known shape",
            f"{item.activity.compilations} compilations in {TRACED_STEPS} steps",
            "0",
            item.activity.compilations == 0 and (True if scope.is_real else None),
        ),
        Figure.of(
            f"{item.name}: a copy can be hidden behind a step",
            f"T {1e3 * item.transfer_s:.2f} ms, C {1e3 * item.step_s:.2f} ms",
            "T at most C",
            item.transfer_s <= item.step_s if scope.gpus > 1 and scope.is_real else None,
        ),
        Figure.of(
            f"{item.name}: the memory peak is as forecast",
            memory,
            f"at most {PEAK_OVER_FORECAST} of the forecast, which leaves out workspaces",
            None if peak is None else peak <= PEAK_OVER_FORECAST,
        ),
    ]


def model_data(item: StageFigures) -> dict[str, Any]:
    return asdict(item) | {"activity": item.activity._asdict()}
