"""What the times of a profile say: rates, efficiency, bottleneck, and what would help by how much. Numpy only.

Terms as in docs/reference/pipeline.md: P, T and C are the seconds to produce, transfer and consume a batch. One after
the other they take P + T + C. Reading, the producer's thread (P and then T) and the model run at the same time, so the
slowest of these three sets the pace: that is the ceiling.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from myxtts.config.schema import DataConfig
from myxtts.observe.advice import candidates, flags_of
from myxtts.planner.emulator import Span
from myxtts.planner.simulator import QueueDepths, simulate
from myxtts.planner.stage_times import STAGES, StageTimes

LEAST_GAIN = 0.02  # below this a change is not worth a restart, however still the machine is
# Of the model device: least utilisation, largest variation of a step's time.
GRADES = (("excellent", 0.90, 0.20), ("good", 0.80, 0.30), ("minimum", 0.70, 0.40))
SEVERAL = 4  # passes over the batches in a simulation


@dataclass(frozen=True)
class TracedRun:
    """One run of all stages together.

    Attributes:
        seconds: of all its batches.
        wait_s: the model had no batch.
        blocked_s: the producer waited for the model to take one.
        busy_s: the model worked.
        step_s: float [steps], from the end of the step before to its own.
        spans: of every stage and batch.
    """

    seconds: float
    wait_s: float
    blocked_s: float
    busy_s: float
    step_s: np.ndarray
    spans: Sequence[Span]


@dataclass(frozen=True)
class Measurement:
    """What was measured on one sequence of batches.

    Attributes:
        work: float [batches], audio seconds of each, or 1 where the stages are emulated.
        padded: float [batches], the same with padding.
        alone_s: by stage, float [batches]; of `read` the time between two batches, by all workers together.
        plain_s: seconds of the sequence in each pass that ran as a training run does; empty where noting the times
            takes none, so that the watched passes stand for these.
        watched: the passes in which the stages' times were noted.
        lengths: int [batches], which bucket each is of.
        single: batches were made on the device that trains.
        devices: GPUs, real or simulated, that a placement may use.
        more_workers_s: seconds between two batches of reading with the `num_workers` that `candidates` names, if tried.
        static_share: time of a step with static shapes over that without, if tried.
        fixed_share: share of a step's time that is left at no rows, by a line through those of a batch and of half of
            it, if tried. A device that is not full yet makes it larger, so that the gain by it is the most there is.
    """

    work: np.ndarray
    padded: np.ndarray
    alone_s: dict[str, np.ndarray]
    plain_s: Sequence[float]
    watched: Sequence[TracedRun]
    lengths: np.ndarray
    single: bool
    devices: int
    more_workers_s: float | None = None
    static_share: float | None = None
    fixed_share: float | None = None


class Recommendation(NamedTuple):
    """A change of settings, and the share by which the run would train more speech a second."""

    flags: str
    gain: float
    basis: str  # measured, simulated, or at most: what it rests on


@dataclass(frozen=True)
class Analysis:
    """All that the profile says. Rates are work a second; shares are from 0 to 1.

    Attributes:
        rates: by stage, alone; None where it takes no time.
        mean_s, variations: by stage, seconds of a batch and their standard deviation over it.
        ceiling: of the slowest of reading, the producer's thread and the model.
        achieved: of the passes that ran as a training run does.
        serial: of producing, transfer and step one after the other, while reading runs ahead.
        gain, ideal_gain: achieved and ceiling over serial.
        noise: by how much two equal passes differ.
        watching_costs: share of the time that watched passes take longer; None where there are no others.
        variation: standard deviation of a step's time over its mean.
        variation_in_bucket: the same with each step's time over the mean of its bucket.
    """

    rates: dict[str, float | None]
    mean_s: dict[str, float]
    variations: dict[str, float]
    ceiling: float
    achieved: float
    efficiency: float
    accelerator_utilisation: float
    serial: float
    gain: float
    ideal_gain: float
    noise: float
    watching_costs: float | None
    step_mean_s: float
    step_p50_s: float
    step_p95_s: float
    variation: float
    variation_in_bucket: float
    wait_share: float
    blocked_share: float
    padding: float
    bottleneck: str
    grade: str
    recommendations: list[Recommendation]

    @property
    def least_gain(self) -> float:
        """What a change has to gain to be recommended."""
        return max(self.noise, LEAST_GAIN)

    @property
    def reason(self) -> str:
        """The bottleneck in one sentence."""
        mean_ms = {stage: 1e3 * seconds for stage, seconds in self.mean_s.items()}
        takes = {
            "read": f"reading on the host takes {mean_ms['read']:.1f} ms a batch",
            "produce": f"the producer takes {mean_ms['produce'] + mean_ms['transfer']:.1f} ms a batch "
            f"({mean_ms['produce']:.1f} to produce, {mean_ms['transfer']:.1f} to transfer)",
            "step": f"the step takes {mean_ms['step']:.1f} ms a batch",
        }
        slowest = "produce" if self.bottleneck == "transfer" else self.bottleneck
        others = "; ".join(text for stage, text in takes.items() if stage != slowest and mean_ms[stage])
        return f"{self.bottleneck}: alone, {takes[slowest]}; {others}."


def analyze(measured: Measurement, data: DataConfig) -> Analysis:
    """What a measurement says of a run with the settings `data`."""
    work, alone_s = measured.work.sum(), measured.alone_s
    total_s = {stage: float(alone_s[stage].sum()) for stage in STAGES}
    producer_s = total_s["produce"] + total_s["transfer"]
    slowest_s = max(total_s["read"], producer_s, total_s["step"])
    serial_s = max(total_s["read"], producer_s + total_s["step"])
    rounds_s = measured.plain_s or [one.seconds for one in measured.watched]
    plain_s = float(np.mean(rounds_s))
    step_s = np.concatenate([one.step_s for one in measured.watched])
    by_bucket = np.concatenate([_over_bucket(one.step_s, measured.lengths) for one in measured.watched])
    watched_s = sum(one.seconds for one in measured.watched)
    utilisation, variation = sum(one.busy_s for one in measured.watched) / watched_s, _variation(step_s)
    noise = float(np.ptp(rounds_s) / plain_s)
    return Analysis(
        rates={stage: float(work / total_s[stage]) if total_s[stage] else None for stage in STAGES},
        mean_s={stage: total_s[stage] / len(measured.work) for stage in STAGES},
        variations={stage: _variation(alone_s[stage]) for stage in STAGES},
        ceiling=float(work / slowest_s),
        achieved=float(work / plain_s),
        efficiency=slowest_s / plain_s,
        accelerator_utilisation=utilisation,
        serial=float(work / serial_s),
        gain=serial_s / plain_s,
        ideal_gain=serial_s / slowest_s,
        noise=noise,
        watching_costs=watched_s / len(measured.watched) / plain_s - 1.0 if measured.plain_s else None,
        step_mean_s=float(step_s.mean()),
        step_p50_s=float(np.percentile(step_s, 50)),
        step_p95_s=float(np.percentile(step_s, 95)),
        variation=variation,
        variation_in_bucket=_variation(by_bucket),
        wait_share=sum(one.wait_s for one in measured.watched) / watched_s,
        blocked_share=sum(one.blocked_s for one in measured.watched) / watched_s,
        padding=1.0 - float(work / measured.padded.sum()),
        bottleneck=_bottleneck(total_s, slowest_s),
        grade=grade(utilisation, variation),
        recommendations=recommend(measured, data, max(noise, LEAST_GAIN)),
    )


def grade(utilisation: float, variation: float) -> str:
    """The best grade whose two bounds are kept."""
    kept = (name for name, least, most in GRADES if utilisation > least and variation < most)
    return next(kept, "below minimum")


def _bottleneck(total_s: dict[str, float], slowest_s: float) -> str:
    if slowest_s in (total_s["step"], total_s["read"]):
        return "step" if total_s["step"] == slowest_s else "read"
    return "produce" if total_s["produce"] >= total_s["transfer"] else "transfer"


def _variation(seconds: np.ndarray) -> float:
    return float(seconds.std() / seconds.mean()) if seconds.any() else 0.0


def _over_bucket(step_s: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Each step's time over the mean of the steps of its bucket."""
    found = np.empty_like(step_s)
    for bucket in set(lengths.tolist()):
        own = lengths == bucket
        found[own] = step_s[own] / step_s[own].mean()
    return found


def recommend(measured: Measurement, data: DataConfig, least_gain: float) -> list[Recommendation]:
    """Changes of settings that gain more than a share, by a simulation of the queue, the best first."""
    stages = ("read", "produce", "transfer", "step", "variation")
    changes = [change for stage in stages for change in candidates(stage, data, measured.single, measured.devices)]
    now = _Pipeline.of(measured, data)
    rate = now.rate()
    found = []
    for change in changes:
        changed, basis = _changed(now, change, measured)
        if changed is not None:
            found.append(Recommendation(flags_of(change), changed.rate() / rate - 1.0, basis))
    return sorted((one for one in found if one.gain > least_gain), key=lambda one: -one.gain)


@dataclass(frozen=True)
class _Pipeline:
    """What the simulation of the queue needs: seconds of each batch by stage, its work, depths and the route."""

    seconds: dict[str, np.ndarray]
    work: np.ndarray
    depths: QueueDepths
    route: tuple[str, str]

    @classmethod
    def of(cls, measured: Measurement, data: DataConfig) -> "_Pipeline":
        # Of reading the pace of all workers is known. A worker takes as many times longer, and longer for more speech.
        share = measured.padded / measured.padded.mean()
        read_s = data.num_workers * measured.alone_s["read"].mean() * share
        depths = QueueDepths.from_settings(data)
        return cls(measured.alone_s | {"read": read_s}, measured.work, depths, ("0", "0" if measured.single else "1"))

    def rate(self) -> float:
        """Work a second, without the start, when the queues are empty."""
        return float(SEVERAL * self.work.sum() / (self._seconds_of(2 * SEVERAL) - self._seconds_of(SEVERAL)))

    def _seconds_of(self, passes: int) -> float:
        seconds = {f"{stage}_s": np.tile(self.seconds[stage], passes) for stage in STAGES}
        return simulate([self.route], StageTimes(**seconds), self.depths).duration_s

    def scaled(self, stage: str, factor: float) -> "_Pipeline":
        return replace(self, seconds=self.seconds | {stage: self.seconds[stage] * factor})


def _changed(now: _Pipeline, change: dict[str, Any], measured: Measurement) -> tuple[_Pipeline | None, str]:
    """The pipeline after a change of settings, and what that rests on; None where nothing is known of it."""
    depths, trial_s = now.depths, measured.more_workers_s
    match change:
        case {"num_workers": workers}:
            if trial_s is None:  # each worker as fast as now
                return replace(now, depths=replace(depths, workers=workers)), "simulated"
            factor = trial_s / measured.alone_s["read"].mean() * workers / depths.workers
            return replace(now.scaled("read", factor), depths=replace(depths, workers=workers)), "measured"
        case {"cache_dataset": _} | {"use_tf_native_loading": _}:
            return now.scaled("read", 0.0), "at most"
        case {"prefetch_buffer_size": depth}:
            return replace(now, depths=replace(depths, feed=depth, uploaded=depth)), "simulated"
        case {"buffer_size": depth}:
            return replace(now, depths=replace(depths, host=depth)), "simulated"
        case {"data_gpu": data_gpu, "model_gpu": model_gpu}:
            changed = replace(now, route=(str(data_gpu), str(model_gpu)))
            return (changed, "at most") if measured.single else (changed.scaled("transfer", 0.0), "simulated")
        case {"enable_static_shapes": _}:
            share = measured.static_share
            return (None, "") if share is None else (now.scaled("step", share), "measured")
        case {"batch_size": _}:
            share = measured.fixed_share
            return (None, "") if share is None else (_doubled(now, share), "at most")
    return None, ""


def _doubled(now: _Pipeline, fixed_share: float) -> _Pipeline:
    """Twice the rows in a batch: what a step takes beside its rows is paid once for two."""
    twice = {stage: 2.0 * seconds for stage, seconds in now.seconds.items()}
    return replace(now, seconds=twice, work=2.0 * now.work).scaled("step", 1.0 - fixed_share / 2.0)
