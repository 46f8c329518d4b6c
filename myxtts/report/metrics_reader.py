"""The reader of metrics.jsonl, which reports write. No TensorFlow.

A power cut, a full disk or a broken disk may leave NULs, half a line or other bytes. Curves are no
reason to stop a run or a page, so such lines are skipped everywhere, and a run that resumes drops
and counts them.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

MAX_STEP = 2**53  # beyond it a float64 skips whole numbers
TEXTS = ("bottleneck",)  # the metrics that are words


def parse_report(line: bytes) -> dict[str, Any] | None:
    """Return the report in a line; None for a damaged line, which is anything but what
    `MetricsFile` writes.

    A report is a JSON object: `step` is a whole number of at least 0, the metrics in TEXTS are
    text, and all others are finite numbers, or null for numbers that were not finite.
    """
    try:
        report = json.loads(line, parse_constant=_reject)
    except (ValueError, RecursionError):  # no UTF-8, no JSON, NaN, or nested too deeply
        return None
    if not isinstance(report, dict) or not _is_step(report.get("step")):
        return None
    return report if all(_is_value(name, value) for name, value in report.items()) else None


def read_lines(path: Path) -> list[dict[str, Any] | None]:
    """Return the report in each line of a metrics.jsonl, None for damaged ones; no lines if there
    is no file.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [parse_report(line) for line in lines if line]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the reports in a metrics.jsonl, without damaged lines; none if there is no file."""
    return [report for report in read_lines(path) if report is not None]


def _reject(constant: str) -> NoReturn:
    raise ValueError(constant)


def _is_step(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_STEP


def _is_value(name: str, value: Any) -> bool:
    if value is None:
        return True
    if name in TEXTS:
        return isinstance(value, str)
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def validation_scores(metrics: Mapping[str, Any]) -> list[str]:
    """Return what a validation measured beside the losses, such as `character error rate 1.2 %`."""
    measured = {
        name.removeprefix("validation_").replace("_", " "): value
        for name, value in metrics.items()
        if name.startswith("validation_") and value is not None
    }
    rates = [
        f"{name} {100 * value:.1f} %" for name, value in measured.items() if name.endswith(" rate")
    ]
    return rates + [
        f"{name.removesuffix(' db')} {value:.2f} dB"
        for name, value in measured.items()
        if name.endswith(" db")
    ]
