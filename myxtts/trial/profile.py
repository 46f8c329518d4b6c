"""A profile of a run: its measurements, what follows from them, and their report.

Terms as in docs/reference/pipeline.md. In a pipeline, reading, producing, the transfer and the
step run at the same time, so the slowest of them sets the rate: the ceiling. Rates are seconds of
audio per second; fractions are from 0 to 1.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from myxtts.base.clock import Interval
from myxtts.config.schema import Config, DataConfig
from myxtts.devicefeed.routes import Placement, Route
from myxtts.devicefeed.times import Span
from myxtts.placement.bound import STAGES, analytic_bound
from myxtts.report import assess
from myxtts.trial import steps as measure
from myxtts.trial.gpu_usage import GpuUsage
from myxtts.trial.stages import StageTimes, coefficient_of_variation

log = logging.getLogger(__name__)

RUNS = 2

# A smaller gain is not worth a restart, however quiet the machine is.
MIN_GAIN = 0.02


@dataclass(frozen=True)
class Measurement:
    """Measurements of one sequence of batches.

    Attributes:
        work, padded_work: float [batches], seconds of audio in each, without and with padding.
        isolated: as `StageProfile.times`.
        untraced_s: duration of each untraced run.
        devices: GPUs, real or simulated, that a placement may use.
        can_replicate, all_reduce_s: see `Assessment`.
        produce_without_teacher_s: float [batches]; None where no teacher makes features.
    """

    work: np.ndarray
    padded_work: np.ndarray
    isolated: StageTimes
    untraced_s: Sequence[float]
    traced: Sequence[measure.TracedRun]
    placement: Placement
    devices: int
    can_replicate: bool = True
    all_reduce_s: float | None = None
    produce_without_teacher_s: np.ndarray | None = None

    @property
    def route(self) -> Route:
        return self.placement.routes[0]

    @property
    def producers(self) -> int:
        """Number of data devices, which take turns."""
        return len(self.route.data_devices)

    @property
    def shared_s(self) -> dict[str, float]:
        """Seconds of all batches by stage, on all devices that have the stage."""
        shared_s = {stage: float(self.isolated[stage].sum()) for stage in STAGES}
        # Data devices that take turns read and produce several batches at a time.
        for stage in ("read", "produce"):
            shared_s[stage] /= self.producers
        return shared_s

    @property
    def duration_s(self) -> float:
        """Mean duration of the untraced runs, which are as fast as training."""
        return float(np.mean(self.untraced_s))

    @property
    def noise(self) -> float:
        """Relative difference of equal runs."""
        return float(np.ptp(self.untraced_s) / self.duration_s)

    @property
    def total(self) -> Interval:
        """Times of all traced runs."""
        return sum((run.total for run in self.traced), Interval())

    @property
    def step_s(self) -> np.ndarray:
        """float [steps of all traced runs]"""
        return np.concatenate([run.step_s for run in self.traced])


class Row:
    """A line of the report, and the figures in JSON that its template shows; "" shows none."""

    def __init__(self, label: str, template: str, **figures: Any):
        self.text = template.format(**figures)
        self.line = f"{label:<14} {self.text}"
        self.figures = figures


def profile(config: Config, steps: int) -> tuple[list[Row], Sequence[Span]]:
    """Measure so many steps of a run; return the report, and the spans of the last traced run."""
    with measure.open_run(config) as run:
        measurement, device_rows = measure_run(run, steps)
    title = Row(
        "profile",
        f"{run.placement.name}, {steps} steps",
        num_workers=config.data.num_workers,
        single_device=not measurement.route.is_between_devices,
    )
    rows = [title, *analyze(measurement, config.data), *device_rows]
    return rows, measurement.traced[-1].spans


# Each stage is first measured alone on sample batches. Then whole runs are timed, two of each kind
# by turns: untraced, whose duration counts, and traced, whose spans show who waited for whom. The
# all-reduce is last, because it needs a strategy of its own.
def measure_run(run: measure.ProfiledRun, steps: int) -> tuple[Measurement, list[Row]]:
    """Measure the stages alone and all together, and the use of the devices."""
    setup = run.setup
    pipeline = setup.training_pipeline(synchronize=setup.between_devices)
    window = measure.measurement_window(pipeline, steps)
    log.info("%-14s each stage in isolation", "measuring")
    isolated, _ = measure.measure_isolated(run, pipeline, window)
    produce_without_teacher_s = measure.time_producing_without_teacher(pipeline, window)
    traced_pipeline = setup.training_pipeline(synchronize=True)
    on_gpu = run.placement.on_gpu
    usage = GpuUsage(run.placement.gpus)
    run = replace(run, watch=usage)
    untraced_s = []
    traced = []
    for number in range(1, RUNS + 1):
        log.info(
            "%-14s all stages together, %d steps, pass %d of %d", "measuring", steps, number, RUNS
        )
        untraced_s.append(measure.run_untraced(run, pipeline, steps))
        traced.append(measure.run_traced(run, traced_pipeline, steps))
    all_reduce_s = None
    if assess.has_two_devices(run.placement):
        all_reduce_s = measure.measure_all_reduce(run)
    measurement = Measurement(
        work=window.audio_s[window.measured],
        padded_work=window.padded_s[window.measured],
        isolated=isolated,
        untraced_s=untraced_s,
        traced=traced,
        placement=run.placement,
        devices=setup.gpu_count,
        can_replicate=setup.config.training.compile != "xla",
        all_reduce_s=all_reduce_s,
        produce_without_teacher_s=produce_without_teacher_s,
    )
    rows = [Row("traces", "{step_traces} of the step", step_traces=run.step.traces)]
    note = (
        "these devices share the cores of one CPU. A stage in isolation has all cores, so the"
        " ceiling is higher than all stages together can reach"
    )
    rows += usage_rows(usage)
    return measurement, [*rows, Row("note", "" if on_gpu else note, shares_cores=not on_gpu)]


def usage_rows(usage: GpuUsage) -> Iterator[Row]:
    """Yield how busy each GPU was in the measured passes, or why it is unknown."""
    figures = usage.figures()
    for gpu, of_gpu in figures.items():
        text = "{utilisation:.0%} busy, {least_utilisation:.0%} in the least busy second"
        if of_gpu["watts"]:
            text += ", {watts:.0f} W"
        yield Row(f"GPU {gpu}", f"{text}, {{memory_mib:.0f}} MiB".format(**of_gpu))
    text = usage.reason and f"no usage from the driver: {usage.reason}"
    yield Row("GPUs", text, gpu_usage=figures, no_usage_reason=usage.reason)


def analyze(measurement: Measurement, data: DataConfig) -> list[Row]:
    """Return the report of a run with the settings `data`."""
    assessment = assess_profile(measurement)
    return [
        *_stage_rows(measurement),
        *_rate_rows(measurement, assessment),
        *_step_rows(measurement),
        *_advice_rows(measurement, data, assessment),
    ]


def _stage_rows(measurement: Measurement) -> Iterator[Row]:
    """Yield the stages in isolation: the rates of all their devices, and the times of one."""
    stages = {}
    rows = []
    for stage in STAGES:
        shared_s = measurement.shared_s[stage]
        rate, rate_text = None, "no time"
        if shared_s:
            rate = float(measurement.work.sum()) / shared_s
            rate_text = f"{rate:.1f}"
        mean_s = float(measurement.isolated[stage].mean())
        variation = coefficient_of_variation(measurement.isolated[stage])
        stages[stage] = {"mean_s": mean_s, "variation": variation, "audio_seconds_per_s": rate}
        text = f"{rate_text:>17}   {1e3 * mean_s:12.2f}   {variation:9.1%}"
        rows.append(Row(f"  {stage}", text))
    header = f"{'audio s/s':>17}   ms per batch   variation"
    yield Row("isolated", header, stages=stages, producers=measurement.producers)
    yield from rows
    share, text = None, ""
    if measurement.produce_without_teacher_s is not None:
        without_s = float(measurement.produce_without_teacher_s.sum())
        share = max(0.0, 1.0 - without_s / float(measurement.isolated.produce_s.sum()))
        text = "{teacher_share:.0%} of producing"
    yield Row("teacher", text, teacher_share=share)


def _rate_rows(measurement: Measurement, assessment: assess.Assessment) -> Iterator[Row]:
    """Yield the rates of all stages together, and the steps of other placements."""
    work = float(measurement.work.sum())
    slowest_s = max(measurement.shared_s.values())
    ceiling = "{ceiling:.1f} audio s/s, the slowest of reading, produce, transfer and step"
    yield Row("ceiling", ceiling, ceiling=work / slowest_s)
    achieved = "{achieved:.1f} audio s/s, all stages together; two runs differ by {noise:.1%}"
    rate = work / measurement.duration_s
    yield Row("achieved", achieved, achieved=rate, noise=measurement.noise)
    efficiency = slowest_s / measurement.duration_s
    yield Row("efficiency", "{efficiency:.1%}, achieved / ceiling", efficiency=efficiency)
    milliseconds = ", ".join(
        f"{name} {1e3 * seconds:.1f}" for name, seconds in assessment.placements_s.items()
    )
    text = f"ms a step: {milliseconds}; the first one measured, the others in proportion"
    yield Row("placements", text, assessment=assessment.to_json())


def _step_rows(measurement: Measurement) -> Iterator[Row]:
    """Yield the times of steps, waits and tracing in the traced runs."""
    step_s, total = measurement.step_s, measurement.total
    mean_s = float(step_s.mean())
    p50_s, p95_s = map(float, np.percentile(step_s, [50, 95]))
    text = f"{1e3 * mean_s:.1f} ms, p50 {1e3 * p50_s:.1f}, p95 {1e3 * p95_s:.1f}"
    yield Row(
        "step",
        f"{text}, variation {{step_variation:.1%}}",
        step_mean_s=mean_s,
        step_p50_s=p50_s,
        step_p95_s=p95_s,
        step_variation=coefficient_of_variation(step_s),
    )
    yield Row(
        "waits",
        "model without a batch {wait_fraction:.1%} of the time, producer blocked on a full feed"
        " {blocked_fraction:.1%}",
        wait_fraction=total.wait_share,
        blocked_fraction=total.blocked_s / total.busy_s,
    )
    padding = 1.0 - float(measurement.work.sum()) / float(measurement.padded_work.sum())
    yield Row("padding", "{padding:.1%} of the samples in batches", padding=padding)
    overhead = total.busy_s / len(measurement.traced) / measurement.duration_s - 1.0
    yield Row("tracing", "{tracing_overhead:.1%} overhead", tracing_overhead=overhead)


def _advice_rows(
    measurement: Measurement, data: DataConfig, assessment: assess.Assessment
) -> Iterator[Row]:
    """Yield the bottleneck, what would be faster, and the grade."""
    # On a tie the step is named, since nothing else can help before the step is shorter.
    order = ("step", "read", "produce", "transfer")
    bottleneck = max(order, key=measurement.shared_s.__getitem__)
    yield Row("bottleneck", "{bottleneck}, the slowest stage", bottleneck=bottleneck)
    recommendations = recommend(measurement, data)
    texts = {each.flags: f"{each.flags}: at most {each.gain:+.0%}" for each in recommendations}
    for flags in assessment.recommended:
        texts.setdefault(flags, flags)
    for text in texts.values() or ["nothing: no flag is expected to gain more than the noise"]:
        yield Row("recommended", text)
    figures = [each._asdict() for each in recommendations]
    yield Row(
        "grade",
        assessment.line,
        grade=assessment.grade,
        accelerator_utilisation=assessment.model_busy,
        recommendations=figures,
    )


def assess_profile(measurement: Measurement) -> assess.Assessment:
    """Compare the placement with others. Times are of a step with all that it accumulates."""
    steps = len(measurement.traced[0].step_s)
    data_busy = None
    if measurement.route.is_between_devices:
        spans = chain.from_iterable(run.spans for run in measurement.traced)
        produce_s = sum(span.end_s - span.start_s for span in spans if span.kind == "produce")
        data_busy = min(produce_s / (measurement.total.busy_s * measurement.producers), 1.0)
    return assess.Assessment(
        interval_s=measurement.duration_s / steps,
        mean_s={stage: float(measurement.isolated[stage].sum()) / steps for stage in STAGES},
        model_busy=1.0 - measurement.total.wait_share,
        data_busy=data_busy,
        step_variation=coefficient_of_variation(measurement.step_s),
        all_reduce_s=measurement.all_reduce_s,
        gpus=assess.gpus_of(measurement.placement),
        second_device=measurement.devices > 1,
        can_replicate=measurement.can_replicate,
        note=assess.shared_hardware(measurement.placement),
    )


class Recommendation(NamedTuple):
    """A change of settings, and the fraction by which the throughput would rise at most."""

    flags: str
    gain: float


# For the slowest causes in turn, `assess.candidates` names changes of settings. The bound is
# computed again with each change: no reading with a cache, more workers, other devices. What it
# gains over the present bound is the most that the change can bring. Deeper queues change no bound;
# they can bring what the run lacks to its own bound.
def recommend(measurement: Measurement, data: DataConfig) -> list[Recommendation]:
    """Return changes of settings that lower the bound by more than the noise, the best first.

    Deeper queues are among them where stages vary; their gain is the gap from the run to its bound.
    """
    route, single = measurement.route, not measurement.route.is_between_devices
    mean_s = measurement.isolated.mean_s(data.num_workers)
    present_s = analytic_bound([route], mean_s, data.num_workers)[1]
    min_gain = max(measurement.noise, MIN_GAIN)
    recommendations = []
    for stage in (*STAGES, "variation"):
        for change in assess.candidates(
            stage, data, single, measurement.devices, measurement.producers
        ):
            placed, costs, workers = route, mean_s, data.num_workers
            if "cache_dataset" in change:
                costs = mean_s | {"read": 0.0}
            elif "num_workers" in change:
                workers = change["num_workers"]
            elif "model_gpu" in change:
                first, *further = map(str, change.get("data_gpus") or [change["data_gpu"]])
                placed = Route(first, str(change["model_gpu"]), tuple(further))
            gain = present_s / analytic_bound([placed], costs, workers)[1] - 1.0
            if stage == "variation":
                steps = len(measurement.isolated) * present_s
                gain = measurement.duration_s / steps - 1.0
            recommendations.append(Recommendation(assess.flags_of(change), gain))
    worthwhile = [each for each in recommendations if each.gain > min_gain]
    return sorted(worthwhile, key=lambda each: -each.gain)


def chrome_trace(spans: Sequence[Span], name: str) -> dict[str, Any]:
    """Return spans as complete events of Google's Trace Event Format (JSON object form), in µs."""
    process = {"pid": 0, "tid": 0}
    events: list[dict[str, Any]] = [
        {"ph": "M", **process, "name": "process_name", "args": {"name": name}}
    ]
    origin_s = min(span.start_s for span in spans)
    for tid, (row, row_spans) in enumerate(timeline_rows(spans).items(), 1):
        thread = {"pid": 0, "tid": tid}
        events.append({"ph": "M", **thread, "name": "thread_name", "args": {"name": row}})
        order = {"sort_index": tid}
        events.append({"ph": "M", **thread, "name": "thread_sort_index", "args": order})
        for span in row_spans:
            times = {"ts": span.start_s - origin_s, "dur": span.end_s - span.start_s}
            event = {"ph": "X", **thread, "name": f"{span.kind} {span.number}", "cat": span.kind}
            event |= {key: 1e6 * seconds for key, seconds in times.items()}
            events.append(event | {"args": {"batch": span.number}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def timeline_rows(spans: Sequence[Span]) -> dict[str, list[Span]]:
    """Return spans by row, in the order of STAGES; overlapping batches have several rows."""
    rows: dict[str, list[Span]] = {}
    for stage in STAGES:
        stage_rows: list[list[Span]] = []
        of_stage = [span for span in spans if span.kind == stage]
        for span in sorted(of_stage, key=lambda span: span.start_s):
            free_row = next((row for row in stage_rows if row[-1].end_s <= span.start_s), None)
            if free_row is None:
                stage_rows.append([span])
            else:
                free_row.append(span)
        for number, row in enumerate(stage_rows, 1):
            name = stage if len(stage_rows) == 1 else f"{stage} {number}"
            rows[name] = row
    return rows
