"""The metrics of a run for plots: read while they are written, and kept in few points."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.report.metrics import parse_report

# A curve has 240 to 480 points: more than a phone has pixels.
POINTS = 240


class Point(NamedTuple):
    """Values of neighbouring reports up to `step`, with five digits."""

    step: int
    mean: float
    low: float
    high: float


class Series:
    """A metric by step, in at most 2 * POINTS points of equally many values each.

    When the points are full, neighbours are joined: a value takes constant time and no memory. The
    least and the greatest value are never lost.

    Attributes:
        newest, least: (step, value); None before the first value.
        since_least: number of values since the least one.
        not_finite: (step of the newest, number) of reports without a finite value.
    """

    def __init__(self) -> None:
        # Rows of step, low, sum, high and count, 20 kB. Lists of 50 metrics took 3 to 7 MB in small
        # pieces.
        self._rows = np.zeros((2 * POINTS, 5))
        self._length = 0
        # The newest row is a list, since it changes with each value.
        self._row: list[float] = []
        self._per_point = 1
        self._last_step = -1
        self.newest: tuple[int, float] | None = None
        self.least: tuple[int, float] | None = None
        self.since_least = 0
        self.not_finite: tuple[int, int] = (0, 0)

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
        self.since_least += 1
        if self.least is None or value < self.least[1]:
            self.least = (step, value)
            self.since_least = 0
        if self._row and self._row[4] < self._per_point:
            _, low, total, high, count = self._row
            self._row = [step, min(low, value), total + value, max(high, value), count + 1]
            return
        if self._row:
            self._rows[self._length] = self._row
            self._length += 1
        if self._length == 2 * POINTS:
            self._join_neighbours()
        self._row = [step, value, value, value, 1]

    def _join_neighbours(self) -> None:
        _, low, total, high, count = self._rows[::2].T
        step, next_low, next_total, next_high, next_count = self._rows[1::2].T
        with np.errstate(over="ignore"):
            # Values may be as large as a float64 can be, so their sum may overflow.
            total = total + next_total
        low, high = np.minimum(low, next_low), np.maximum(high, next_high)
        self._rows[:POINTS] = np.stack([step, low, total, high, count + next_count], axis=1)
        self._length = POINTS
        self._per_point *= 2

    @property
    def points(self) -> list[Point]:
        points = []
        for row in [*self._rows[: self._length].tolist(), self._row]:
            if row:
                step, low, total, high, count = row
                # A sum of large values may be infinite, for which JSON has no word; a mean is not.
                mean = min(max(total / count, low), high)
                points.append(Point(int(step), *(float(f"{x:.5g}") for x in (mean, low, high))))
        return points


class History:
    """A metrics.jsonl, followed while it grows, and read again when a resumed run replaced it.

    Attributes:
        series: by metric.
        newest: of the reports with a loss; empty before the first.
        interval_steps: steps between the two newest reports with a loss.
        step: of the newest report of any kind.
        seconds: total of the run's steps by what they went to: steps without waits, waits, pauses.
    """

    def __init__(self, path: Path):
        self._path = path
        self._reset()

    def _reset(self) -> None:
        self._offset = 0
        # The line that ends at the offset: where it is another one, the file was replaced.
        self._last = b""
        self.series: dict[str, Series] = {}
        self.newest: dict[str, Any] = {}
        self.interval_steps = 0
        self.step = 0
        self.seconds = {"step": 0.0, "wait": 0.0, "pause": 0.0}

    def update(self) -> None:
        """Read the lines since the last call; an incomplete one is left for the next."""
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

    def _add(self, report: Mapping[str, Any]) -> None:
        for name, value in report.items():
            if name != "step" and not isinstance(value, str):
                self.series.setdefault(name, Series()).add(report["step"], value)
        if "loss" in report:
            self._sum_up(report)
            self.newest = dict(report)
        self.step = max(self.step, report["step"])

    def _sum_up(self, report: Mapping[str, Any]) -> None:
        seconds = {name: report.get(f"{name}_s") or 0.0 for name in self.seconds}
        seconds["step"] -= seconds["wait"]
        if report.get("step_s") is not None:
            self.series.setdefault("busy_s", Series()).add(report["step"], seconds["step"])
        # A job may begin at the step of a warm start, so those of the first interval are unknown.
        self.interval_steps = report["step"] - self.newest.get("step", report["step"])
        for name in self.seconds:
            self.seconds[name] += self.interval_steps * seconds[name]

    def points(self, name: str) -> list[Point]:
        return self.series[name].points if name in self.series else []
