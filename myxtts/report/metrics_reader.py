"""The reader of metrics.jsonl, which reports write. No TensorFlow.

A power cut, a full disk or a broken disk may leave NULs, half a line or other bytes. Curves are no
reason to stop a run or a page, so such lines are skipped everywhere, and a run that resumes drops
and counts them.
"""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

MAX_STEP = 2**53  # beyond it a float64 skips whole numbers
TAIL_BYTES = 1 << 16  # several hundred lines
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


def merge_lines(lines: Iterable[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Return one report for each step, in the order of the steps, from the lines of a
    metrics.jsonl.

    Several lines of a step are one report; a later line wins, as that of an observation which a
    resumed run repeats. Damaged lines (None) are left out.
    """
    reports: dict[int, dict[str, Any]] = {}
    for line in lines:
        if line is not None:
            reports.setdefault(line["step"], {}).update(line)
    return [reports[step] for step in sorted(reports)]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the reports in a metrics.jsonl, one a step; none if there is no file."""
    return merge_lines(read_lines(path))


def read_last_report(metrics: Path, key: str = "loss") -> dict[str, Any]:
    """Return the newest complete line of a metrics.jsonl that has a key; empty if there is none.

    Reads the end of the file alone, so the metrics of the step in other lines are not merged.
    """
    try:
        with open(metrics, "rb") as file:
            end, length = os.fstat(file.fileno()).st_size, TAIL_BYTES
            while True:
                start = max(end - length, 0)
                file.seek(start)
                for line in reversed(file.read(end - start).split(b"\n")):
                    # The last line, or the first line of the tail, may be incomplete.
                    if key.encode() in line and key in (report := parse_report(line) or {}):
                        return report
                if not start:
                    return {}
                length *= 8
    except FileNotFoundError:
        return {}


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
