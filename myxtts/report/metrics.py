"""metrics.jsonl: its one reader and its writer, and the scores of a validation in words.

A power cut or a full disk may leave NULs, half a line or other bytes. Such lines are skipped
everywhere, and a run that resumes drops and counts them.
"""

import json
import logging
import math
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from myxtts.files import attach_path_to_errors, write_whole

# Beyond it a float64 skips whole numbers.
MAX_STEP = 2**53
# Several hundred lines, among which the newest report is.
TAIL_BYTES = 1 << 16
# All other metrics are numbers.
TEXTS = ("bottleneck",)

log = logging.getLogger(__name__)


def parse_report(line: bytes) -> dict[str, Any] | None:
    """Return the report in a line; None for a damaged line.

    A report is a JSON object: `step` is a whole number of at least 0, the metrics in TEXTS are
    text, and all others are finite numbers, or null for numbers that were not finite.
    """
    try:
        report = json.loads(line, parse_constant=_reject)
    except (ValueError, RecursionError):
        # The line is no UTF-8, no JSON, has NaN, or is nested too deeply.
        return None
    step = report.get("step") if isinstance(report, dict) else None
    is_report = type(step) is int and 0 <= step <= MAX_STEP
    return report if is_report and all(map(_is_value, report, report.values())) else None


def _reject(constant: str) -> NoReturn:
    raise ValueError(constant)


def _is_value(name: str, value: Any) -> bool:
    if value is None or name in TEXTS:
        return value is None or isinstance(value, str)
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def read_lines(path: Path) -> list[dict[str, Any] | None]:
    """Return the report in each line of a metrics.jsonl, None for damaged ones."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return [parse_report(line) for line in lines if line]


def merge_lines(lines: Iterable[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Return one report for each step, in the order of the steps, without damaged lines (None).

    Several lines of a step are one report; a later line wins, as that of an observation which a
    resumed run repeats.
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
    """Return the newest complete line that has a key, from the end of a file; empty without one."""
    try:
        with open(metrics, "rb") as file:
            start = os.fstat(file.fileno()).st_size
            length = TAIL_BYTES
            while start:
                start = max(start - length, 0)
                file.seek(start)
                for line in reversed(file.read().split(b"\n")):
                    # The last line, or the first line of the tail, may be incomplete.
                    if key.encode() in line and key in (report := parse_report(line) or {}):
                        return report
                length *= 8
    except FileNotFoundError:
        pass
    return {}


class MetricsFile:
    """metrics.jsonl: one JSON object a line. Any thread may write.

    The file is rewritten first with one line for each step up to that from which the run continues.
    A step may later have several lines: an observation ends after later steps were reported.
    """

    def __init__(self, path: Path, step: int):
        lines = read_lines(path)
        if damaged := lines.count(None):
            message = "%d of %d lines of %s were damaged and are dropped"
            log.warning(message, damaged, len(lines), path)
        reports = [report for report in merge_lines(lines) if report["step"] <= step]
        write_whole(path, "".join(json.dumps(report) + "\n" for report in reports).encode())
        self._path = path
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - open as long as the run
        self._lock = threading.Lock()

    def write(self, metrics: dict[str, float | str]) -> None:
        """Append a line; a number that is not finite becomes null, as in JSON."""
        # A skipped float16 step has such numbers.
        lost = {
            name: None
            for name, value in metrics.items()
            if not isinstance(value, str) and not math.isfinite(value)
        }
        # What a full disk refuses stays in the buffer, and follows with a later line.
        with attach_path_to_errors(self._path), self._lock:
            self._file.write(json.dumps(metrics | lost) + "\n")
            self._file.flush()

    def close(self) -> None:
        with attach_path_to_errors(self._path):
            self._file.close()


def validation_scores(metrics: Mapping[str, Any]) -> list[str]:
    """Return the scores of a validation in words, such as `character error rate 1.2 %`."""
    rates, levels = [], []
    for name, value in metrics.items():
        words = name.removeprefix("validation_").replace("_", " ")
        if not name.startswith("validation_") or value is None:
            continue
        if words.endswith(" rate"):
            rates.append(f"{words} {100 * value:.1f} %")
        elif words.endswith(" db"):
            levels.append(f"{words.removesuffix(' db')} {value:.2f} dB")
    return rates + levels
