"""A profile as lines for people and as JSON for programs. No TensorFlow."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from myxtts.throughput.analysis import Analysis, Recommendation
from myxtts.throughput.assess import TARGETS, Assessment, data_busy_text
from myxtts.throughput.model import STAGES

UNIT = "audio s/s"  # of the rates
MAX_TRACING_OVERHEAD = 0.02  # a larger one is compared with the noise of the machine


@dataclass(frozen=True)
class DeviceMetrics:
    """Measurements beside the stage times.

    Attributes:
        step_traces: how often the step was traced.
        model_flops_per_s: of the model's matrix products; None where they cannot be counted.
        not_counted_reason: why they cannot be counted.
        matmul_flops_per_s: of one large matrix product on the same device.
        gpu_usage: of each physical GPU, as `GpuUsage.to_json` returns it.
        no_usage_reason: why `gpu_usage` is empty.
        shares_cores: the devices are parts of one CPU.
    """

    step_traces: int
    model_flops_per_s: float | None
    not_counted_reason: str
    matmul_flops_per_s: float
    gpu_usage: dict[int, dict[str, float]]
    no_usage_reason: str
    shares_cores: bool

    @property
    def model_flops_utilisation(self) -> float | None:
        """MFU: the model's rate, divided by the rate of one large matrix product."""
        return (
            None
            if self.model_flops_per_s is None
            else self.model_flops_per_s / self.matmul_flops_per_s
        )

    def lines(self) -> Iterator[str]:
        yield f"{'traces':<14} {self.step_traces} of the step"
        if self.model_flops_per_s is None:
            yield f"{'MFU':<14} not counted: {self.not_counted_reason}"
        else:
            yield (
                f"{'MFU':<14} {self.model_flops_utilisation:.1%}:"
                f" {self.model_flops_per_s / 1e9:.1f} GFLOP/s in the model's matrix products,"
                f" {self.matmul_flops_per_s / 1e9:.1f} in one large matrix product"
            )
        for gpu, usage in self.gpu_usage.items():
            yield (
                f"{f'GPU {gpu}':<14} {usage['utilisation']:.0%} busy (variation"
                f" {usage['utilisation_variation']:.0%}), at most {usage['memory_mib']:.0f} MiB"
            )
        if self.no_usage_reason:
            yield f"{'GPUs':<14} no usage from the driver: {self.no_usage_reason}"
        if self.shares_cores:
            yield (
                f"{'note':<14} these devices share the cores of one CPU. A stage in isolation has"
                " all cores, so the ceiling and the ideal speedup are higher than all stages"
                " together can reach"
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"model_flops_utilisation": self.model_flops_utilisation}


def report_lines(analysis: Analysis) -> list[str]:
    """Return the analysis line by line."""
    lines = [f"{'isolated':<14} {UNIT:>17}   ms per batch   variation"]
    for stage in STAGES:
        rate = analysis.rates[stage]
        rate_text = "no time" if rate is None else f"{rate:.1f}"
        mean_ms, variation = 1e3 * analysis.mean_s[stage], analysis.variations[stage]
        lines.append(f"  {stage:<12} {rate_text:>17}   {mean_ms:12.2f}   {variation:9.1%}")
    if analysis.teacher_share is not None:
        produce_ms = 1e3 * analysis.mean_s["produce"]
        lines.append(
            f"{'teacher':<14} {analysis.teacher_share:.0%} of producing:"
            f" {analysis.teacher_share * produce_ms:.2f} of {produce_ms:.2f} ms per batch"
        )
    labelled = {
        "ceiling": (
            f"{analysis.ceiling:.1f} {UNIT}, the slowest of reading, produce, transfer and step"
        ),
        "achieved": (
            f"{analysis.achieved:.1f} {UNIT}, all stages together; two runs differ by"
            f" {analysis.noise:.1%}"
        ),
        "serial": (
            f"{analysis.serial:.1f} {UNIT}, if produce, transfer and step ran one after the other"
        ),
        "efficiency": f"{analysis.efficiency:.1%}, achieved / ceiling",
        **device_texts(analysis.assessment),
        "speedup": (
            f"{analysis.speedup:.2f} x, achieved / serial; ideal {analysis.ideal_speedup:.2f} x"
        ),
        "step": (
            f"{1e3 * analysis.step_mean_s:.1f} ms, p50 {1e3 * analysis.step_p50_s:.1f}, "
            f"p95 {1e3 * analysis.step_p95_s:.1f}, variation {analysis.step_variation:.1%} "
            f"({analysis.step_variation_in_bucket:.1%} within a bucket)"
        ),
        "waits": (
            f"model without a batch {analysis.wait_fraction:.1%} of the time, producer blocked on a"
            f" full feed {analysis.blocked_fraction:.1%}"
        ),
        "padding": f"{analysis.padding:.1%} of the samples in batches",
    }
    overhead = analysis.tracing_overhead
    comparison = (
        ", within the noise of this machine"
        if MAX_TRACING_OVERHEAD < overhead <= analysis.noise
        else ""
    )
    labelled["tracing"] = f"{overhead:.1%} overhead{comparison}"
    lines += [f"{label:<14} {text}" for label, text in labelled.items()]
    lines.append(f"{'bottleneck':<14} {analysis.reason}")
    for recommendation in analysis.recommendations:
        lines.append(f"{'recommended':<14} {recommendation.flags}: {_format_gain(recommendation)}")
    flags = [recommendation.flags for recommendation in analysis.recommendations]
    for change in (change for change in analysis.assessment.recommended if change not in flags):
        lines.append(f"{'recommended':<14} {change}")
    if not analysis.recommendations and not analysis.assessment.recommended:
        lines.append(
            f"{'recommended':<14} nothing: no flag is expected to gain more than"
            f" {analysis.min_gain:.1%}"
        )
    lines.append(f"{'grade':<14} {analysis.assessment.line}")
    return lines


def device_texts(assessment: Assessment) -> dict[str, str]:
    """Return how busy the devices are, and what the placements take by arithmetic, by the labels of
    their lines.
    """
    targets = ", ".join(f"{target.grade} {target.model_busy:.0%}" for target in reversed(TARGETS))
    texts = {
        "model device": (
            f"busy {assessment.model_busy:.1%} of the time: {assessment.grade_text} (targets:"
            f" {targets})"
        )
    }
    if assessment.data_busy is not None:
        texts["data device"] = (
            f"busy {assessment.data_busy:.1%} of the time: {data_busy_text(assessment.data_busy)}"
        )
    milliseconds = ", ".join(
        f"{name} {1e3 * seconds:.1f}" for name, seconds in assessment.placements_s.items()
    )
    all_reduce = (
        "not included"
        if assessment.all_reduce_s is None
        else f"{1e3 * assessment.all_reduce_s:.1f}"
    )
    return texts | {
        "placements": (
            f"ms a step: {milliseconds}; the present one measured, the others in proportion by"
            f" arithmetic; all-reduce {all_reduce}"
        ),
        "second device": assessment.comparison,
    }


def _format_gain(recommendation: Recommendation) -> str:
    gain, basis = recommendation.gain, recommendation.basis
    return f"at most {gain:+.0%}" if basis == "at most" else f"{gain:+.0%} ({basis})"


def analysis_to_json(analysis: Analysis) -> dict[str, Any]:
    """Return the analysis as JSON."""
    values = asdict(analysis) | {
        "grade": analysis.grade,
        "assessment": analysis.assessment.to_json(),
    }
    by_stage = [values.pop(name) for name in ("mean_s", "variations", "rates")]
    names = ("mean_s", "variation", "audio_seconds_per_s")
    values["stages"] = {
        stage: dict(zip(names, (column[stage] for column in by_stage), strict=True))
        for stage in STAGES
    }
    values["recommendations"] = [
        recommendation._asdict() for recommendation in analysis.recommendations
    ]
    return values | {"unit": UNIT, "reason": analysis.reason}
