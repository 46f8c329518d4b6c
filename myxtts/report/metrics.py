"""metrics.jsonl: its writer and its readers, one of which keeps few points of each curve.

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
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from myxtts.base.files import attach_path_to_errors, tolerate_full_disk, write_whole

# Beyond it a float64 skips whole numbers.
MAX_STEP = 2**53
# Several hundred lines, among which the newest report is.
TAIL_BYTES = 1 << 16
# A curve has 240 to 480 points: more than a phone has pixels.
POINTS = 240
TEXT_METRICS = ("bottleneck",)

log = logging.getLogger(__name__)


class Figure(NamedTuple):
    """A metric by which the best checkpoint of a run is chosen."""

    metric: str
    label: str
    sign: int = 1  # -1 if greater is better


FIGURES = {
    "loss": Figure("validation_loss", "validation loss"),
    "dnsmos": Figure("evaluation_dnsmos_mean", "DNSMOS", sign=-1),
    "cer": Figure("evaluation_character_error_rate", "character error rate"),
}
"""By the value of the setting select_by."""
_SIGNS = {figure.metric: figure.sign for figure in FIGURES.values()}


def parse_report(line: bytes) -> dict[str, Any] | None:
    """Return the report in a line; None for a damaged line.

    A report is a JSON object: `step` is a whole number of at least 0, TEXT_METRICS are text, and
    all others are finite numbers, or null for numbers that were not finite.
    """
    try:
        report = json.loads(line, parse_constant=_reject)
    except (ValueError, RecursionError):
        # The line is no UTF-8, no JSON, has NaN, or is nested too deeply.
        return None
    if not isinstance(report, dict):
        return None
    step = report.get("step")
    is_report = type(step) is int and 0 <= step <= MAX_STEP
    if not is_report or not all(map(_is_value, report, report.values())):
        return None
    return report


def _reject(constant: str) -> NoReturn:
    raise ValueError(constant)


def _is_value(name: str, value: Any) -> bool:
    if value is None or name in TEXT_METRICS:
        return value is None or isinstance(value, str)
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def read_lines(path: Path) -> list[dict[str, Any] | None]:
    """Return the report in each line of a metrics.jsonl, None for damaged ones."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    return [parse_report(line) for line in lines if line]


def merge_lines(lines: Iterable[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Return one report for each step, in the order of the steps, without damaged lines (None).

    Lines of a step are joined; a later one wins, such as of an observation that was repeated.
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
    with suppress(FileNotFoundError), open(metrics, "rb") as file:
        start, length = os.fstat(file.fileno()).st_size, TAIL_BYTES
        while start:
            start = max(start - length, 0)
            file.seek(start)
            for line in reversed(file.read().split(b"\n")):
                # The last line, or the first line of the tail, may be incomplete.
                if key.encode() in line and key in (report := parse_report(line) or {}):
                    return report
            length *= 8
    return {}


class MetricsFile:
    """metrics.jsonl: one JSON object a line. Any thread may write, also to a full disk.

    The file is rewritten first, with one line for each step up to `step`, where the run continues.
    Later a step may have several lines: an observation ends after later steps were reported.
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

    def write(self, metrics: dict[str, Any]) -> None:
        """Append a line of a step; a number that is not finite becomes null, as in JSON."""
        # A skipped float16 step has such numbers.
        lost = {
            name: None
            for name, value in metrics.items()
            if not isinstance(value, str) and not math.isfinite(value)
        }
        # What a full disk refuses stays in the buffer, and follows with a later line.
        full_disk = tolerate_full_disk(f"the metrics of step {metrics['step']}")
        with full_disk, attach_path_to_errors(self._path), self._lock:
            self._file.write(json.dumps(metrics | lost) + "\n")
            self._file.flush()

    def close(self) -> None:
        with tolerate_full_disk("the last metrics"), attach_path_to_errors(self._path):
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


class Point(NamedTuple):
    """Values of neighbouring reports up to `step`, with five digits."""

    step: int
    mean: float
    low: float
    high: float


class Series:
    """A metric by step, in at most 2 * POINTS points of equally many values each.

    Full points are joined in pairs; the least and the greatest value are never lost.

    Attributes:
        newest, best: (step, value); None before the first value.
        since_best: number of values since the best one, by default the least.
        not_finite: (step of the newest, number) of reports without a finite value.
    """

    def __init__(self, sign: int = 1) -> None:
        self._sign = sign
        # Step, low, sum, high and count of each point. For 50 metrics they take up to 7 MB.
        self._rows: list[list[float]] = []
        self._per_point = 1
        self._last_step = -1
        self.newest: tuple[int, float] | None = None
        self.best: tuple[int, float] | None = None
        self.since_best = 0
        self.not_finite: tuple[int, int] = (0, 0)

    # A value joins the newest point until this has its number of values. When there is no room for
    # another point, neighbours are joined in pairs, and from then on a point takes twice as many.
    def add(self, step: int, value: float | None) -> None:
        """Add the value of a step; None stands for one that is not finite."""
        # A resumed run may repeat the last observations, with the same results.
        if step <= self._last_step:
            return
        self._last_step = step
        if value is None:
            self.not_finite = (step, self.not_finite[1] + 1)
            return
        self.newest = (step, value)
        self.since_best += 1
        if self.best is None or self._sign * value < self._sign * self.best[1]:
            self.best = (step, value)
            self.since_best = 0
        row = [step, value, value, value, 1]
        if self._rows and self._rows[-1][4] < self._per_point:
            self._rows[-1] = _joined(self._rows[-1], row)
            return
        if len(self._rows) == 2 * POINTS:
            self._rows = [*map(_joined, self._rows[::2], self._rows[1::2])]
            self._per_point *= 2
        self._rows.append(row)

    @property
    def points(self) -> list[Point]:
        points = []
        for step, low, total, high, count in self._rows:
            # A sum of large values may be infinite, for which JSON has no word; a mean is not.
            mean = min(max(total / count, low), high)
            mean, low, high = (float(f"{value:.5g}") for value in (mean, low, high))
            points.append(Point(int(step), mean, low, high))
        return points


def _joined(row: list[float], later: list[float]) -> list[float]:
    _, low, total, high, count = row
    step, next_low, next_total, next_high, next_count = later
    return [step, min(low, next_low), total + next_total, max(high, next_high), count + next_count]


class History:
    """A metrics.jsonl, followed while it grows, and read again when a resumed run replaced it.

    Attributes:
        series: the values of each metric.
        newest: the newest report with a loss; empty before the first.
        interval_steps: steps between the two newest reports with a loss.
        step: the step of the newest report of any kind.
        seconds: total time of the run in steps without waits, in waits, and in pauses.
    """

    def __init__(self, path: Path):
        self._path = path
        self._reset()

    def _reset(self) -> None:
        self._offset = 0
        # The line that ends at the offset. If another one is there, the file was replaced.
        self._last = b""
        self.series: dict[str, Series] = {}
        self.newest: dict[str, Any] = {}
        self.interval_steps = 0
        self.step = 0
        self.seconds = {"step": 0.0, "wait": 0.0, "pause": 0.0}

    def update(self) -> bool:
        """Read the complete lines since the last call; return whether there are any."""
        before = self._last, self._offset
        with suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(max(self._offset - len(self._last), 0))
            if file.read(len(self._last)) != self._last:
                self._reset()
                file.seek(0)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                if (report := parse_report(line)) is not None:
                    self._add(report)
                self._offset += len(line)
                self._last = line
        return (self._last, self._offset) != before

    def _add(self, report: Mapping[str, Any]) -> None:
        for name, value in report.items():
            if name != "step" and not isinstance(value, str):
                self.series.setdefault(name, Series(_SIGNS.get(name, 1))).add(report["step"], value)
        if "loss" in report:
            self._sum_up(report)
            self.newest = dict(report)
        self.step = max(self.step, report["step"])

    def _sum_up(self, report: Mapping[str, Any]) -> None:
        seconds = {name: report.get(f"{name}_s") or 0.0 for name in self.seconds}
        seconds["step"] -= seconds["wait"]
        if report.get("step_s") is not None:
            self.series.setdefault("busy_s", Series()).add(report["step"], seconds["step"])
        # A job may begin at the step of a warm start, so the first interval is unknown.
        self.interval_steps = report["step"] - self.newest.get("step", report["step"])
        for name in self.seconds:
            self.seconds[name] += self.interval_steps * seconds[name]

    def points(self, name: str) -> list[Point]:
        return self.series[name].points if name in self.series else []
