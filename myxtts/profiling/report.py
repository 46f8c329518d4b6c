"""What a profile found, as lines for people and as JSON for programs. No TensorFlow."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from myxtts.planner.stage_times import STAGES
from myxtts.profiling.analysis import Analysis, Recommendation

WATCHING = 0.02  # the most that watching may cost


@dataclass(frozen=True)
class DeviceMetrics:
    """What is found beside the times.

    Attributes:
        traces: of the step.
        flops_per_s: of the matrix products of the model; None where they cannot be counted.
        uncounted: why not.
        product_flops_per_s: of a matrix product alone on the same device.
        usage: of each physical GPU, as `Usage.figures` gives it.
        no_usage: why there is none.
        shared_cores: devices are parts of one CPU.
    """

    traces: int
    flops_per_s: float | None
    uncounted: str
    product_flops_per_s: float
    usage: dict[int, dict[str, float]]
    no_usage: str
    shared_cores: bool

    @property
    def model_flops_utilisation(self) -> float | None:
        """MFU: the share of the rate of a matrix product alone."""
        return None if self.flops_per_s is None else self.flops_per_s / self.product_flops_per_s

    def lines(self) -> Iterator[str]:
        yield f"{'traces':<14} {self.traces} of the step"
        if self.flops_per_s is None:
            yield f"{'MFU':<14} not counted: {self.uncounted}"
        else:
            yield (
                f"{'MFU':<14} {self.model_flops_utilisation:.1%}: {self.flops_per_s / 1e9:.1f} GFLOP/s in the model's "
                f"matrix products, {self.product_flops_per_s / 1e9:.1f} in one such product alone"
            )
        for gpu, figures in self.usage.items():
            yield (
                f"{f'GPU {gpu}':<14} {figures['utilisation']:.0%} in use (variation "
                f"{figures['utilisation_variation']:.0%}), at most {figures['memory_mib']:.0f} MiB"
            )
        if self.no_usage:
            yield f"{'GPUs':<14} no figures by the driver: {self.no_usage}"
        if self.shared_cores:
            yield (
                f"{'note':<14} these devices share the cores of one CPU. A stage alone has them all, so ceiling and "
                "ideal are higher here than what all stages together can reach"
            )

    def figures(self) -> dict[str, Any]:
        return asdict(self) | {"model_flops_utilisation": self.model_flops_utilisation}


def report_lines(verdict: Analysis, unit: str) -> list[str]:
    """The verdict, line by line; `unit` is that of its rates."""
    lines = [f"{'alone':<14} {unit:>17}   ms a batch   variation"]
    for stage in STAGES:
        rate = verdict.rates[stage]
        shown = "no time" if rate is None else f"{rate:.1f}"
        lines.append(
            f"  {stage:<12} {shown:>17}   {1e3 * verdict.mean_s[stage]:10.2f}   {verdict.variations[stage]:9.1%}"
        )
    named = {
        "ceiling": f"{verdict.ceiling:.1f} {unit}, of the slowest of reading, produce + transfer, and step",
        "achieved": f"{verdict.achieved:.1f} {unit}, all together; two passes differ by {verdict.noise:.1%}",
        "serial": f"{verdict.serial:.1f} {unit}, would be produce, transfer and step one after the other",
        "efficiency": f"{verdict.efficiency:.1%}, achieved / ceiling",
        "AU": f"{verdict.accelerator_utilisation:.1%} of the time the model device works",
        "gain": f"{verdict.gain:.2f} x, achieved / serial; the ideal is {verdict.ideal_gain:.2f} x",
        "step": f"{1e3 * verdict.step_mean_s:.1f} ms, p50 {1e3 * verdict.step_p50_s:.1f}, "
        f"p95 {1e3 * verdict.step_p95_s:.1f}, variation {verdict.variation:.1%} "
        f"({verdict.variation_in_bucket:.1%} within a bucket)",
        "waits": f"{verdict.wait_share:.1%} of the time the model had no batch, and {verdict.blocked_share:.1%} the "
        "producer stood before a full feed",
        "padding": f"{verdict.padding:.1%} of what is computed",
    }
    if verdict.watching_costs is not None:
        told = ", within the noise of this machine" if WATCHING < verdict.watching_costs <= verdict.noise else ""
        named["watching costs"] = f"{verdict.watching_costs:.1%} of the time{told}"
    lines += [f"{name:<14} {text}" for name, text in named.items()]
    lines.append(f"{'bottleneck':<14} {verdict.reason}")
    lines += [f"{'recommended':<14} {one.flags}: {_gain(one)}" for one in verdict.recommendations]
    if not verdict.recommendations:
        lines.append(f"{'recommended':<14} nothing: no flag is expected to gain more than {verdict.least_gain:.1%}")
    lines.append(f"{'grade':<14} {verdict.grade}")
    return lines


def _gain(one: Recommendation) -> str:
    return f"at most {one.gain:+.0%}" if one.basis == "at most" else f"{one.gain:+.0%} ({one.basis})"


def analysis_figures(verdict: Analysis, unit: str) -> dict[str, Any]:
    """The verdict as JSON."""
    figures = asdict(verdict)
    by_stage = [figures.pop(name) for name in ("mean_s", "variations", "rates")]
    names = ("mean_s", "variation", "audio_seconds_per_s" if unit.startswith("audio") else "batches_per_s")
    figures["stages"] = {
        stage: dict(zip(names, (column[stage] for column in by_stage), strict=True)) for stage in STAGES
    }
    figures["recommendations"] = [one._asdict() for one in verdict.recommendations]
    return figures | {"unit": unit, "reason": verdict.reason}
