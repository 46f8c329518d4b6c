"""A profile: its measurements, what follows from them, and their report. No TensorFlow.

Terms as in docs/reference/pipeline.md: P, T and C are the seconds to produce, transfer and consume
a batch. One after the other they take P + T + C. In a pipeline, reading, producing, the transfer
and the step run at the same time, so the slowest of them sets the rate: the ceiling. Rates are
seconds of audio per second; fractions are from 0 to 1.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from myxtts.clock import Interval, Span
from myxtts.config.schema import DataConfig
from myxtts.placement.routes import Route
from myxtts.throughput.assess import TARGETS, Assessment, candidates, data_busy_text, flags_of
from myxtts.throughput.model import STAGES, QueueDepths, StageTimes, simulate
from myxtts.throughput.stage_times import coefficient_of_variation, read_s_per_worker

# Of the rates.
UNIT = "audio s/s"

# A smaller gain is not worth a restart, however quiet the machine is.
MIN_GAIN = 0.02

# Passes over the measured batches: the first four fill the queues and are subtracted.
SIMULATED_PASSES = 4

# A larger one is compared with the noise of the machine.
MAX_TRACING_OVERHEAD = 0.02


class TracedRun(NamedTuple):
    """A run of all stages together.

    Attributes:
        total: the times of its steps, as the clock of the loop counts them.
        step_s: float [steps], from the end of the previous step to the end of the step.
        spans: of every stage and batch.
    """

    total: Interval
    step_s: np.ndarray
    spans: Sequence[Span]


class Trials(NamedTuple):
    """Measured effects of other settings; None where a setting was not tried.

    Attributes:
        more_workers_s: seconds between two batches of reading with the `num_workers` that
            `candidates` suggests.
        static_shapes_ratio: time of a step with static shapes over the time without.
        fixed_fraction: fraction of a step's time that remains at zero rows, extrapolated from a
            whole batch and half of it. It is too large on a device that is not full yet, so that
            the gain derived from it is an upper limit.
    """

    more_workers_s: float | None = None
    static_shapes_ratio: float | None = None
    fixed_fraction: float | None = None


@dataclass(frozen=True)
class Measurement:
    """Measurements of one sequence of batches.

    Attributes:
        work: float [batches], seconds of audio in each.
        padded_work: float [batches], the same with padding.
        isolated: times of each stage in isolation; `read_s` is the time between two batches from
            all workers together.
        untraced_s: duration of each untraced run.
        step_bucket: int [steps], the bucket of each step.
        single_device: one device makes the batches and trains.
        devices: GPUs, real or simulated, that a placement may use.
        gpus, can_replicate, augmentation, note: see `Assessment`.
        all_reduce_s: of a step's gradients between two replicas; None where it was not measured.
        produce_without_teacher_s: float [batches], to produce each batch without the teacher's
            network; None without one.
    """

    work: np.ndarray
    padded_work: np.ndarray
    isolated: StageTimes
    untraced_s: Sequence[float]
    traced: Sequence[TracedRun]
    step_bucket: np.ndarray
    single_device: bool
    devices: int
    trials: Trials = field(default_factory=Trials)
    gpus: tuple[int, ...] = (0, 1)
    all_reduce_s: float | None = None
    can_replicate: bool = True
    augmentation: str = ""
    note: str = ""
    produce_without_teacher_s: np.ndarray | None = None

    @property
    def route(self) -> Route:
        """The route from the data devices to the model device, with their numbers as names."""
        *data, model = map(str, self.gpus)
        return Route(model, model) if self.single_device else Route(data[0], model, tuple(data[1:]))

    @property
    def producers(self) -> int:
        """Number of data devices, which take turns."""
        return len(self.route.data_devices)

    @property
    def total_s(self) -> dict[str, float]:
        """Seconds of all batches by stage, on one device."""
        return {stage: float(self.isolated[stage].sum()) for stage in STAGES}

    @property
    def shared_s(self) -> dict[str, float]:
        """The same on all devices that have the stage."""
        total_s = self.total_s
        # Data devices that take turns read and produce several batches at a time.
        return total_s | {stage: total_s[stage] / self.producers for stage in ("read", "produce")}

    @property
    def duration_s(self) -> float:
        """Mean duration of the untraced runs, whose times are those of training."""
        return float(np.mean(self.untraced_s))

    @property
    def noise(self) -> float:
        """Relative difference of equal runs."""
        return float(np.ptp(self.untraced_s) / self.duration_s)

    @property
    def traced_s(self) -> float:
        return sum(run.total.busy_s for run in self.traced)

    @property
    def wait_fraction(self) -> float:
        """Fraction of the time in which the model device has no batch."""
        return sum(run.total.wait_s for run in self.traced) / self.traced_s

    @property
    def step_s(self) -> np.ndarray:
        """float [steps of all traced runs]"""
        return np.concatenate([run.step_s for run in self.traced])


@dataclass(frozen=True)
class Row:
    """A line of the report, with the figures in JSON that it shows.

    Attributes:
        text: empty if only programs get the figures.
        figures: by JSON key.
    """

    label: str
    text: str
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> str:
        return f"{self.label:<14} {self.text}"


def analyze(measurement: Measurement, data: DataConfig) -> list[Row]:
    """Return the report of a run with the settings `data`."""
    assessment = assess(measurement)
    return [
        *_stage_rows(measurement),
        *_rate_rows(measurement, assessment),
        *_step_rows(measurement),
        *_advice_rows(measurement, data, assessment),
    ]


def _stage_rows(measurement: Measurement) -> Iterator[Row]:
    """Yield the stages in isolation: their rates on all devices that have them, and their times on
    one device.
    """
    work = float(measurement.work.sum())
    mean_s = measurement.isolated.mean_s()
    stages = {}
    rows = []
    for stage in STAGES:
        shared_s = measurement.shared_s[stage]
        rate = work / shared_s if shared_s else None
        rate_text = "no time" if rate is None else f"{rate:.1f}"
        variation = coefficient_of_variation(measurement.isolated[stage])
        text = f"{rate_text:>17}   {1e3 * mean_s[stage]:12.2f}   {variation:9.1%}"
        rows.append(Row(f"  {stage}", text))
        figures = {"mean_s": mean_s[stage], "variation": variation, "audio_seconds_per_s": rate}
        stages[stage] = figures
    header = f"{UNIT:>17}   ms per batch   variation"
    common = {"stages": stages, "unit": UNIT, "producers": measurement.producers}
    yield Row("isolated", header, common)
    yield from rows
    share = None
    text = ""
    if measurement.produce_without_teacher_s is not None:
        without_s = float(measurement.produce_without_teacher_s.sum())
        share = max(0.0, 1.0 - without_s / measurement.total_s["produce"])
        produce_ms = 1e3 * mean_s["produce"]
        text = (
            f"{share:.0%} of producing: {share * produce_ms:.2f} of {produce_ms:.2f} ms per batch"
        )
    yield Row("teacher", text, {"teacher_share": share})


def _rate_rows(measurement: Measurement, assessment: Assessment) -> Iterator[Row]:
    """Yield the rates of all stages together, and how busy the devices are."""
    work = float(measurement.work.sum())
    total_s = measurement.total_s
    duration_s = measurement.duration_s
    slowest_s = max(measurement.shared_s.values())
    # Reading runs ahead of the other stages on the host, also without a pipeline.
    serial_s = max(total_s["read"], total_s["produce"] + total_s["transfer"] + total_s["step"])
    ceiling = work / slowest_s
    text = f"{ceiling:.1f} {UNIT}, the slowest of reading, produce, transfer and step"
    yield Row("ceiling", text, {"ceiling": ceiling})
    achieved = work / duration_s
    noise = measurement.noise
    text = f"{achieved:.1f} {UNIT}, all stages together; two runs differ by {noise:.1%}"
    yield Row("achieved", text, {"achieved": achieved, "noise": noise})
    serial = work / serial_s
    text = f"{serial:.1f} {UNIT}, if produce, transfer and step ran one after the other"
    yield Row("serial", text, {"serial": serial})
    efficiency = slowest_s / duration_s
    text = f"{efficiency:.1%}, achieved / ceiling"
    yield Row("efficiency", text, {"efficiency": efficiency})
    yield from _device_rows(assessment)
    speedup = serial_s / duration_s
    ideal = serial_s / slowest_s
    text = f"{speedup:.2f} x, achieved / serial; ideal {ideal:.2f} x"
    yield Row("speedup", text, {"speedup": speedup, "ideal_speedup": ideal})


def _device_rows(assessment: Assessment) -> Iterator[Row]:
    """Yield how busy the devices are, and what the placements take by arithmetic."""
    targets = ", ".join(f"{target.grade} {target.model_busy:.0%}" for target in reversed(TARGETS))
    busy = f"busy {assessment.model_busy:.1%} of the time: {assessment.grade_text}"
    figures = {"accelerator_utilisation": assessment.model_busy}
    yield Row("model device", f"{busy} (targets: {targets})", figures)
    if assessment.data_busy is not None:
        target = data_busy_text(assessment.data_busy)
        yield Row("data device", f"busy {assessment.data_busy:.1%} of the time: {target}")
    milliseconds = ", ".join(
        f"{name} {1e3 * seconds:.1f}" for name, seconds in assessment.placements_s.items()
    )
    all_reduce = "not included"
    if assessment.all_reduce_s is not None:
        all_reduce = f"{1e3 * assessment.all_reduce_s:.1f}"
    text = (
        f"ms a step: {milliseconds}; the present one measured, the others in proportion by"
        f" arithmetic; all-reduce {all_reduce}"
    )
    yield Row("placements", text, {"assessment": assessment.to_json()})
    yield Row("second device", assessment.comparison)


def _step_rows(measurement: Measurement) -> Iterator[Row]:
    """Yield the times of steps, waits and tracing in the traced runs."""
    step_s = measurement.step_s
    mean_s = float(step_s.mean())
    p50_s, p95_s = map(float, np.percentile(step_s, [50, 95]))
    variation = coefficient_of_variation(step_s)
    # Longer buckets have longer steps. Without this part, the rest is noise of the machine.
    relative = [
        _over_bucket_mean(run.step_s, measurement.step_bucket) for run in measurement.traced
    ]
    in_bucket = coefficient_of_variation(np.concatenate(relative))
    text = (
        f"{1e3 * mean_s:.1f} ms, p50 {1e3 * p50_s:.1f}, p95 {1e3 * p95_s:.1f},"
        f" variation {variation:.1%} ({in_bucket:.1%} within a bucket)"
    )
    figures = {"step_mean_s": mean_s, "step_p50_s": p50_s, "step_p95_s": p95_s}
    figures |= {"step_variation": variation, "step_variation_in_bucket": in_bucket}
    yield Row("step", text, figures)
    waits = measurement.wait_fraction
    blocked = sum(run.total.blocked_s for run in measurement.traced) / measurement.traced_s
    text = (
        f"model without a batch {waits:.1%} of the time, producer blocked on a full feed"
        f" {blocked:.1%}"
    )
    yield Row("waits", text, {"wait_fraction": waits, "blocked_fraction": blocked})
    padding = 1.0 - float(measurement.work.sum()) / float(measurement.padded_work.sum())
    yield Row("padding", f"{padding:.1%} of the samples in batches", {"padding": padding})
    traced_s = measurement.traced_s / len(measurement.traced)
    overhead = traced_s / measurement.duration_s - 1.0
    text = f"{overhead:.1%} overhead"
    if MAX_TRACING_OVERHEAD < overhead <= measurement.noise:
        text += ", within the noise of this machine"
    yield Row("tracing", text, {"tracing_overhead": overhead})


def _over_bucket_mean(step_s: np.ndarray, step_bucket: np.ndarray) -> np.ndarray:
    """Return each step's time over the mean of the steps of its bucket."""
    ratios = np.empty_like(step_s)
    for bucket in set(step_bucket.tolist()):
        in_bucket = step_bucket == bucket
        ratios[in_bucket] = step_s[in_bucket] / step_s[in_bucket].mean()
    return ratios


def _advice_rows(
    measurement: Measurement, data: DataConfig, assessment: Assessment
) -> Iterator[Row]:
    """Yield the bottleneck, what would be faster, and the grade."""
    # On a tie the step is named, since nothing else can help before the step is shorter.
    order = ("step", "read", "produce", "transfer")
    bottleneck = max(order, key=measurement.shared_s.__getitem__)
    reason = _reason(measurement, bottleneck)
    yield Row("bottleneck", reason, {"bottleneck": bottleneck, "reason": reason})
    min_gain = max(measurement.noise, MIN_GAIN)
    recommendations = recommend(measurement, data, min_gain)
    texts = {}
    for change in recommendations:
        gain = f"{change.gain:+.0%} ({change.basis})"
        if change.basis == "at most":
            gain = f"at most {change.gain:+.0%}"
        texts[change.flags] = f"{change.flags}: {gain}"
    for flags in assessment.recommended:
        texts.setdefault(flags, flags)
    nothing = f"nothing: no flag is expected to gain more than {min_gain:.1%}"
    for text in texts.values() or [nothing]:
        yield Row("recommended", text)
    figures = [change._asdict() for change in recommendations]
    yield Row("grade", assessment.line, {"grade": assessment.grade, "recommendations": figures})


def _reason(measurement: Measurement, bottleneck: str) -> str:
    """Return the bottleneck in one sentence."""
    mean_s = measurement.isolated.mean_s()
    verbs = {
        "read": "reading on the host",
        "produce": "producing",
        "transfer": "the transfer",
        "step": "the step",
    }
    texts = {stage: f"{verb} takes {1e3 * mean_s[stage]:.1f} ms" for stage, verb in verbs.items()}
    if measurement.producers > 1:
        texts["read"] += f" for each of {measurement.producers} data devices"
        texts["produce"] += f" on each of {measurement.producers} data devices"
    slowest = texts.pop(bottleneck)
    others = "; ".join(text for stage, text in texts.items() if mean_s[stage])
    return f"{bottleneck}: per batch in isolation, {slowest}; {others}."


def assess(measurement: Measurement) -> Assessment:
    """Compare the placement with others; its times are those of a step, of the batches that the
    step accumulates.
    """
    steps = len(measurement.step_bucket)
    data_busy = None
    if not measurement.single_device:
        produce_s = 0.0
        for run in measurement.traced:
            produce_s += sum(s.end_s - s.start_s for s in run.spans if s.kind == "produce")
        data_busy = min(produce_s / (measurement.traced_s * measurement.producers), 1.0)
    return Assessment(
        interval_s=measurement.duration_s / steps,
        mean_s={stage: seconds / steps for stage, seconds in measurement.total_s.items()},
        model_busy=1.0 - measurement.wait_fraction,
        data_busy=data_busy,
        step_variation=coefficient_of_variation(measurement.step_s),
        all_reduce_s=measurement.all_reduce_s,
        gpus=measurement.gpus,
        second_device=measurement.devices > 1,
        can_replicate=measurement.can_replicate,
        augmentation=measurement.augmentation,
        note=measurement.note,
    )


class Recommendation(NamedTuple):
    """A change of settings, and the fraction by which the throughput would rise.

    Attributes:
        basis: measured, simulated, or at most.
    """

    flags: str
    gain: float
    basis: str


def recommend(measurement: Measurement, data: DataConfig, min_gain: float) -> list[Recommendation]:
    """Return changes of settings that gain more than `min_gain` in a simulation of the pipeline,
    the best first.
    """
    present = measurement.single_device, measurement.devices, measurement.producers
    current = _Pipeline.of(measurement, data)
    current_rate = current.rate()
    recommendations = []
    for stage in (*STAGES, "variation"):
        for change in candidates(stage, data, *present):
            changed, basis = _apply_change(current, change, measurement)
            if changed is not None:
                gain = changed.rate() / current_rate - 1.0
                recommendations.append(Recommendation(flags_of(change), gain, basis))
    worthwhile = [change for change in recommendations if change.gain > min_gain]
    return sorted(worthwhile, key=lambda change: -change.gain)


@dataclass(frozen=True)
class _Pipeline:
    """Inputs of the simulation: the times of each batch, its work, the depths and the route."""

    times: StageTimes
    work: np.ndarray
    depths: QueueDepths
    route: Route

    @classmethod
    def of(cls, measurement: Measurement, data: DataConfig) -> "_Pipeline":
        # Reading takes longer for longer speech.
        length = measurement.padded_work / measurement.padded_work.mean()
        read_s = read_s_per_worker(measurement.isolated.read_s, data.num_workers) * length
        times = replace(measurement.isolated, read_s=read_s)
        depths = QueueDepths.from_settings(
            data.prefetch_buffer_size, data.buffer_size, data.num_workers
        )
        return cls(times, measurement.work, depths, measurement.route)

    def rate(self) -> float:
        """Return the work per second without the start, when the queues are empty."""
        duration_s = self._duration_s(2 * SIMULATED_PASSES) - self._duration_s(SIMULATED_PASSES)
        return SIMULATED_PASSES * float(self.work.sum()) / duration_s

    def _duration_s(self, passes: int) -> float:
        times = self.times.map(lambda times_s: np.tile(times_s, passes))
        return simulate([self.route], times, self.depths).duration_s

    def scaled(self, stage: str, factor: float) -> "_Pipeline":
        times = replace(self.times, **{f"{stage}_s": self.times[stage] * factor})
        return replace(self, times=times)


def _apply_change(
    current: _Pipeline, change: dict[str, Any], measurement: Measurement
) -> tuple[_Pipeline | None, str]:
    """Return the pipeline after a change of settings, and the basis of its times; None where they
    are unknown.
    """
    depths = current.depths
    trials = measurement.trials
    match change:
        case {"num_workers": workers}:
            more_workers = replace(current, depths=replace(depths, workers=workers))
            # Without a trial each worker is assumed to stay as fast.
            if trials.more_workers_s is None:
                return more_workers, "simulated"
            interval_ratio = trials.more_workers_s / measurement.isolated.read_s.mean()
            factor = interval_ratio * workers / depths.workers
            return more_workers.scaled("read", factor), "measured"
        case {"cache_dataset": _} | {"use_tf_native_loading": _}:
            return current.scaled("read", 0.0), "at most"
        case {"prefetch_buffer_size": depth}:
            return replace(current, depths=replace(depths, feed=depth, uploaded=depth)), "simulated"
        case {"buffer_size": depth}:
            return replace(current, depths=replace(depths, host=depth)), "simulated"
        case {"data_gpus": (data_gpu, *further), "model_gpu": model_gpu}:
            route = Route(str(data_gpu), str(model_gpu), tuple(map(str, further)))
            return replace(current, route=route), "simulated"
        case {"data_gpu": data_gpu, "model_gpu": model_gpu}:
            changed = replace(current, route=Route(str(data_gpu), str(model_gpu)))
            if measurement.single_device:
                return changed, "at most"
            return changed.scaled("transfer", 0.0), "simulated"
        case {"enable_static_shapes": _} if trials.static_shapes_ratio is not None:
            return current.scaled("step", trials.static_shapes_ratio), "measured"
        case {"batch_size": _} if trials.fixed_fraction is not None:
            # Twice the rows per batch: the fixed part of the step is paid once for both halves.
            times = current.times.map(lambda times_s: 2.0 * times_s)
            doubled = replace(current, times=times, work=2.0 * current.work)
            return doubled.scaled("step", 1.0 - trials.fixed_fraction / 2.0), "at most"
    return None, ""


def chrome_trace(spans: Sequence[Span], name: str) -> dict[str, Any]:
    """Return the spans of the stages as complete events in the Trace Event Format (Google, JSON
    object form), with times in µs, in rows whose events do not overlap.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": name}}
    ]
    origin_s = min(span.start_s for span in spans)
    for tid, (row, row_spans) in enumerate(timeline_rows(spans).items(), 1):
        common = {"pid": 0, "tid": tid}
        events.append({"ph": "M", **common, "name": "thread_name", "args": {"name": row}})
        events.append(
            {"ph": "M", **common, "name": "thread_sort_index", "args": {"sort_index": tid}}
        )
        for span in row_spans:
            event = {"ph": "X", **common, "name": f"{span.kind} {span.number}", "cat": span.kind}
            times = {
                "ts": 1e6 * (span.start_s - origin_s),
                "dur": 1e6 * (span.end_s - span.start_s),
            }
            events.append(event | times | {"args": {"batch": span.number}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def timeline_rows(spans: Sequence[Span]) -> dict[str, list[Span]]:
    """Return spans by row, in the order of STAGES; a stage whose batches overlap, such as reading,
    has several rows.
    """
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
