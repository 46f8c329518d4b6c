"""A profile as lines for people, JSON for programs, a trace for Perfetto. No TensorFlow."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from myxtts.clock import Span
from myxtts.throughput.analysis import Analysis, Recommendation
from myxtts.throughput.assess import TARGETS, Assessment, data_busy_text
from myxtts.throughput.model import STAGES

# Of the rates.
UNIT = "audio s/s"

# A larger one is compared with the noise of the machine.
MAX_TRACING_OVERHEAD = 0.02


@dataclass(frozen=True)
class DeviceMetrics:
    """Measurements besides the stage times.

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
        if self.model_flops_per_s is None:
            return None
        return self.model_flops_per_s / self.matmul_flops_per_s

    def lines(self) -> Iterator[str]:
        yield _line("traces", f"{self.step_traces} of the step")
        if self.model_flops_per_s is None:
            yield _line("MFU", f"not counted: {self.not_counted_reason}")
        else:
            yield _line(
                "MFU",
                f"{self.model_flops_utilisation:.1%}:"
                f" {self.model_flops_per_s / 1e9:.1f} GFLOP/s in the model's matrix products,"
                f" {self.matmul_flops_per_s / 1e9:.1f} in one large matrix product",
            )
        for gpu, usage in self.gpu_usage.items():
            yield _line(
                f"GPU {gpu}",
                f"{usage['utilisation']:.0%} busy (variation"
                f" {usage['utilisation_variation']:.0%}), at most {usage['memory_mib']:.0f} MiB",
            )
        if self.no_usage_reason:
            yield _line("GPUs", f"no usage from the driver: {self.no_usage_reason}")
        if self.shares_cores:
            yield _line(
                "note",
                "these devices share the cores of one CPU. A stage in isolation has all cores, so"
                " the ceiling and the ideal speedup are higher than all stages together can reach",
            )

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"model_flops_utilisation": self.model_flops_utilisation}


def report_lines(analysis: Analysis) -> list[str]:
    """Return the analysis line by line."""
    lines = [_line("isolated", f"{UNIT:>17}   ms per batch   variation")]
    for stage in STAGES:
        rate = analysis.rates[stage]
        rate_text = "no time" if rate is None else f"{rate:.1f}"
        mean_ms = 1e3 * analysis.mean_s[stage]
        variation = analysis.variations[stage]
        lines.append(_line(f"  {stage}", f"{rate_text:>17}   {mean_ms:12.2f}   {variation:9.1%}"))
    texts = {}
    if analysis.teacher_share is not None:
        produce_ms = 1e3 * analysis.mean_s["produce"]
        texts["teacher"] = (
            f"{analysis.teacher_share:.0%} of producing:"
            f" {analysis.teacher_share * produce_ms:.2f} of {produce_ms:.2f} ms per batch"
        )
    overhead = analysis.tracing_overhead
    tracing = f"{overhead:.1%} overhead"
    if MAX_TRACING_OVERHEAD < overhead <= analysis.noise:
        tracing += ", within the noise of this machine"
    texts |= {
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
        "tracing": tracing,
        "bottleneck": analysis.reason,
    }
    lines += [_line(label, text) for label, text in texts.items()]
    changes = {
        change.flags: f"{change.flags}: {gain_text(change)}" for change in analysis.recommendations
    }
    for flags in analysis.assessment.recommended:
        changes.setdefault(flags, flags)
    nothing = f"nothing: no flag is expected to gain more than {analysis.min_gain:.1%}"
    lines += [_line("recommended", text) for text in changes.values() or [nothing]]
    return [*lines, _line("grade", analysis.assessment.line)]


def device_texts(assessment: Assessment) -> dict[str, str]:
    """Return how busy the devices are, and what the placements take by arithmetic, by the labels of
    their lines.
    """
    targets = ", ".join(f"{target.grade} {target.model_busy:.0%}" for target in reversed(TARGETS))
    busy = f"busy {assessment.model_busy:.1%} of the time: {assessment.grade_text}"
    texts = {"model device": f"{busy} (targets: {targets})"}
    if assessment.data_busy is not None:
        target = data_busy_text(assessment.data_busy)
        texts["data device"] = f"busy {assessment.data_busy:.1%} of the time: {target}"
    milliseconds = ", ".join(
        f"{name} {1e3 * seconds:.1f}" for name, seconds in assessment.placements_s.items()
    )
    all_reduce = "not included"
    if assessment.all_reduce_s is not None:
        all_reduce = f"{1e3 * assessment.all_reduce_s:.1f}"
    texts["placements"] = (
        f"ms a step: {milliseconds}; the present one measured, the others in proportion by"
        f" arithmetic; all-reduce {all_reduce}"
    )
    return texts | {"second device": assessment.comparison}


def gain_text(recommendation: Recommendation) -> str:
    gain = f"{recommendation.gain:+.0%}"
    basis = recommendation.basis
    return f"at most {gain}" if basis == "at most" else f"{gain} ({basis})"


def _line(label: str, text: str) -> str:
    return f"{label:<14} {text}"


def analysis_to_json(analysis: Analysis) -> dict[str, Any]:
    """Return the analysis as JSON."""
    values = asdict(analysis) | {
        "grade": analysis.assessment.grade,
        "assessment": analysis.assessment.to_json(),
        "recommendations": [change._asdict() for change in analysis.recommendations],
        "unit": UNIT,
        "reason": analysis.reason,
    }
    for name in ("mean_s", "variations", "rates"):
        del values[name]
    values["stages"] = {
        stage: {
            "mean_s": analysis.mean_s[stage],
            "variation": analysis.variations[stage],
            "audio_seconds_per_s": analysis.rates[stage],
        }
        for stage in STAGES
    }
    return values


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
