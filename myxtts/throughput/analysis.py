"""Analysis of a profile: rates, efficiency, bottleneck, and predicted gains of other settings. No
TensorFlow.

Terms as in docs/reference/pipeline.md: P, T and C are the seconds to produce, transfer and consume
a batch. One after the other they take P + T + C. In a pipeline, reading, producing, the transfer
and the step run at the same time, so the slowest of them sets the rate: the ceiling.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from myxtts.clock import Interval, Span
from myxtts.config.schema import DataConfig
from myxtts.placement.routes import Route
from myxtts.throughput.assess import Assessment, candidates, flags_of
from myxtts.throughput.model import STAGES, QueueDepths, StageTimes, simulate
from myxtts.throughput.stage_times import coefficient_of_variation, read_s_per_worker

# A smaller gain is not worth a restart, however quiet the machine is.
MIN_GAIN = 0.02

# Passes over the measured batches.
SIMULATED_PASSES = 4


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

    @property
    def produce_s(self) -> float:
        """Seconds that the data device worked on as many batches as were trained."""
        return sum(span.end_s - span.start_s for span in self.spans if span.kind == "produce")


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
        trials: effects of other settings.
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


class Recommendation(NamedTuple):
    """A change of settings, and the fraction by which the throughput would rise.

    Attributes:
        basis: measured, simulated, or at most.
    """

    flags: str
    gain: float
    basis: str


@dataclass(frozen=True)
class Analysis:
    """Results of a profile. Rates are seconds of audio per second; fractions are from 0 to 1.

    Attributes:
        rates: by stage, in isolation, of all devices that have it; None where a stage takes no
            time.
        mean_s, variations: by stage, seconds per batch on one device and their coefficient of
            variation (deviation over mean).
        producers: number of data devices.
        ceiling: the rate of the slowest stage.
        achieved: the rate of all stages together, untraced.
        serial: the rate of producing, transfer and step one after the other, while reading runs
            ahead.
        speedup, ideal_speedup: achieved and ceiling over serial.
        noise: relative difference of two equal runs.
        tracing_overhead: fraction of the time that tracing adds.
        step_variation: coefficient of variation of the step's time.
        step_variation_in_bucket: the same with each step's time divided by the mean of its bucket.
        assessment: the placement compared with others.
        teacher_share: fraction of producing that the teacher's network takes; None without one.
    """

    rates: dict[str, float | None]
    mean_s: dict[str, float]
    variations: dict[str, float]
    producers: int
    ceiling: float
    achieved: float
    efficiency: float
    accelerator_utilisation: float
    serial: float
    speedup: float
    ideal_speedup: float
    noise: float
    tracing_overhead: float
    step_mean_s: float
    step_p50_s: float
    step_p95_s: float
    step_variation: float
    step_variation_in_bucket: float
    wait_fraction: float
    blocked_fraction: float
    padding: float
    bottleneck: str
    recommendations: list[Recommendation]
    assessment: Assessment
    teacher_share: float | None

    @property
    def min_gain(self) -> float:
        """Smallest gain that is recommended."""
        return max(self.noise, MIN_GAIN)

    @property
    def reason(self) -> str:
        """The bottleneck in one sentence."""
        texts = {
            "read": f"reading on the host takes {1e3 * self.mean_s['read']:.1f} ms",
            "produce": f"producing takes {1e3 * self.mean_s['produce']:.1f} ms",
            "transfer": f"the transfer takes {1e3 * self.mean_s['transfer']:.1f} ms",
            "step": f"the step takes {1e3 * self.mean_s['step']:.1f} ms",
        }
        if self.producers > 1:
            texts["read"] += f" for each of {self.producers} data devices"
            texts["produce"] += f" on each of {self.producers} data devices"
        slowest = texts.pop(self.bottleneck)
        others = "; ".join(text for stage, text in texts.items() if self.mean_s[stage])
        return f"{self.bottleneck}: per batch in isolation, {slowest}; {others}."


def analyze(measurement: Measurement, data: DataConfig) -> Analysis:
    """Analyse a measurement of a run with the settings `data`."""
    isolated = measurement.isolated
    traced = measurement.traced
    work = float(measurement.work.sum())
    total_s = {stage: float(isolated[stage].sum()) for stage in STAGES}
    # Data devices that take turns read and produce several batches at a time.
    shared_s = total_s | {s: total_s[s] / measurement.producers for s in ("read", "produce")}
    slowest_s = max(shared_s.values())
    serial_s = max(total_s["read"], total_s["produce"] + total_s["transfer"] + total_s["step"])
    duration_s = float(np.mean(measurement.untraced_s))
    noise = float(np.ptp(measurement.untraced_s) / duration_s)
    traced_s = sum(run.total.busy_s for run in traced)
    wait_fraction = sum(run.total.wait_s for run in traced) / traced_s
    step_s = np.concatenate([run.step_s for run in traced])
    relative_to_bucket = np.concatenate(
        [_over_bucket_mean(run.step_s, measurement.step_bucket) for run in traced]
    )
    variation = coefficient_of_variation(step_s)
    teacher_share = None
    if measurement.produce_without_teacher_s is not None:
        without_s = float(measurement.produce_without_teacher_s.sum())
        teacher_share = max(0.0, 1.0 - without_s / total_s["produce"])
    return Analysis(
        rates={stage: _rate(work, shared_s[stage]) for stage in STAGES},
        mean_s=isolated.mean_s(),
        variations={stage: coefficient_of_variation(isolated[stage]) for stage in STAGES},
        producers=measurement.producers,
        ceiling=work / slowest_s,
        achieved=work / duration_s,
        efficiency=slowest_s / duration_s,
        accelerator_utilisation=1.0 - wait_fraction,
        serial=work / serial_s,
        speedup=serial_s / duration_s,
        ideal_speedup=serial_s / slowest_s,
        noise=noise,
        tracing_overhead=traced_s / len(traced) / duration_s - 1.0,
        step_mean_s=float(step_s.mean()),
        step_p50_s=float(np.percentile(step_s, 50)),
        step_p95_s=float(np.percentile(step_s, 95)),
        step_variation=variation,
        step_variation_in_bucket=coefficient_of_variation(relative_to_bucket),
        wait_fraction=wait_fraction,
        blocked_fraction=sum(run.total.blocked_s for run in traced) / traced_s,
        padding=1.0 - work / float(measurement.padded_work.sum()),
        # The first of equals.
        bottleneck=max(("step", "read", "produce", "transfer"), key=shared_s.__getitem__),
        recommendations=recommend(measurement, data, max(noise, MIN_GAIN)),
        assessment=assess(measurement, duration_s, 1.0 - wait_fraction, variation),
        teacher_share=teacher_share,
    )


def _rate(work: float, seconds: float) -> float | None:
    return work / seconds if seconds else None


def assess(
    measurement: Measurement, duration_s: float, utilisation: float, variation: float
) -> Assessment:
    """Compare the placement with others; its times are those of a step, of the batches that the
    step accumulates.
    """
    steps = len(measurement.step_bucket)
    data_busy = None
    if not measurement.single_device:
        produce_s = sum(run.produce_s for run in measurement.traced)
        available_s = sum(run.total.busy_s for run in measurement.traced) * measurement.producers
        data_busy = min(produce_s / available_s, 1.0)
    return Assessment(
        interval_s=duration_s / steps,
        mean_s={stage: float(measurement.isolated[stage].sum()) / steps for stage in STAGES},
        model_busy=utilisation,
        data_busy=data_busy,
        step_variation=variation,
        all_reduce_s=measurement.all_reduce_s,
        gpus=measurement.gpus,
        second_device=measurement.devices > 1,
        can_replicate=measurement.can_replicate,
        augmentation=measurement.augmentation,
        note=measurement.note,
    )


def _over_bucket_mean(step_s: np.ndarray, step_bucket: np.ndarray) -> np.ndarray:
    """Return each step's time over the mean of the steps of its bucket."""
    ratios = np.empty_like(step_s)
    for bucket in set(step_bucket.tolist()):
        in_bucket = step_bucket == bucket
        ratios[in_bucket] = step_s[in_bucket] / step_s[in_bucket].mean()
    return ratios


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
