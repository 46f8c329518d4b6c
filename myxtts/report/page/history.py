"""The metrics of a run for plots: read as they are written, and kept in few points with their
extremes.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.report.metrics_reader import parse_report

POINTS = 240  # a curve has so many points at least, and twice as many at most


class Point(NamedTuple):
    """Values of some neighbouring reports, of the steps `first` to `last`."""

    first: int
    last: int
    low: float
    mean: float
    high: float


class Series:
    """A metric by step, in at most 2 * POINTS points of equally many values each.

    Adding a value takes constant time and no memory beyond the points, so a run may have any number
    of reports. When the points are full, neighbours are joined; the least and the greatest value of
    all are never lost.

    Attributes:
        newest, least: (step, value); None before the first value.
        before_newest: step of the value before the newest; None before the second value.
        since_least: number of values since the least one.
        not_finite: (step of the newest, number) of reports without a finite value.
    """

    def __init__(self) -> None:
        # Rows of first, last, low, sum, high and count: 23 kB. Lists of 50 metrics took 3 to 7 MB,
        # in small pieces.
        self._rows = np.zeros((2 * POINTS, 6))
        self._length = 0
        self._row: list[float] = []  # the newest, which is not full
        self._per_point = 1
        self.newest: tuple[int, float] | None = None
        self.least: tuple[int, float] | None = None
        self.before_newest: int | None = None
        self.since_least = 0
        self.not_finite: tuple[int, int] = (0, 0)
        self._last_step = -1

    def add(self, step: int, value: float | None) -> None:
        """Add the value of a step; None stands for one that is not finite.

        A value of a step that is not a later one is ignored: a resumed run may repeat the last
        observations, with the same results.
        """
        if step <= self._last_step:
            return
        self._last_step = step
        if value is None:
            self.not_finite = step, self.not_finite[1] + 1
            return
        self.before_newest = self.newest[0] if self.newest else None
        self.newest = step, value
        self.since_least += 1
        if self.least is None or value < self.least[1]:
            self.least, self.since_least = (step, value), 0
        row = self._row
        if not row or row[5] >= self._per_point:
            self._begin_row(step, value)
            return
        row[1] = step
        row[2] = min(row[2], value)
        row[3] += value
        row[4] = max(row[4], value)
        row[5] += 1

    @property
    def points(self) -> list[Point]:
        rows = [*self._rows[: self._length].tolist(), *filter(None, [self._row])]
        return [
            Point(int(first), int(last), low, total / count, high)
            for first, last, low, total, high, count in rows
        ]

    def _begin_row(self, step: int, value: float) -> None:
        if self._row:
            self._rows[self._length] = self._row
            self._length += 1
        if self._length == 2 * POINTS:
            self._join_neighbours()
        self._row = [step, step, value, value, value, 1]

    def _join_neighbours(self) -> None:
        left, right = self._rows[::2], self._rows[1::2]
        first, _, low, total, high, count = left.T
        _, last, right_low, right_total, right_high, right_count = right.T
        with np.errstate(over="ignore"):  # values may be as large as a float64 can be
            columns = (
                first,
                last,
                np.minimum(low, right_low),
                total + right_total,
                np.maximum(high, right_high),
            )
        self._rows[:POINTS] = np.stack([*columns, count + right_count], axis=1)
        self._length = POINTS
        self._per_point *= 2


class History:
    """A metrics.jsonl, followed while it grows.

    A resumed run replaces the file; it is then read from its beginning.

    Attributes:
        series: by metric.
        newest: of the reports with a loss; empty before the first.
        step: of the newest report of any kind.
        seconds: total of the run's steps by what they went to; see `_sum_up`.
    """

    def __init__(self, path: Path):
        self._path = path
        self._reset()

    def _reset(self) -> None:
        self._offset = 0
        self._last = b""  # the line that ends at the offset
        self.series: dict[str, Series] = {}
        self.newest: dict[str, Any] = {}
        self.step = 0
        self.seconds: dict[str, float] = {}
        self._first_step = 0  # of a report with a loss

    def update(self) -> None:
        """Read the lines that were written since the last call; one that is not complete yet is
        left for the next.
        """
        with suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(max(self._offset - len(self._last), 0))
            if file.read(len(self._last)) != self._last:  # it was replaced
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
        step = report["step"]
        for name, value in report.items():
            if name != "step" and not isinstance(value, str):
                self.series.setdefault(name, Series()).add(step, value)
        if "loss" in report:
            self._sum_up(report)
            self.newest = dict(report)
        self.step = max(self.step, step)

    def _sum_up(self, report: Mapping[str, Any]) -> None:
        """Add the times of an interval: its steps without waits, waits and pauses, and those of the
        producer.

        The first interval has as many steps as the second: a job may begin at the step of a warm
        start. Before there is a second, it has all steps.
        """
        parts = {
            name: report.get(f"{name}_s")
            for name in ("step", "wait", "pause", "read", "produce", "blocked")
        }
        if parts["step"] is not None and parts["wait"] is not None:
            parts["step"] -= parts["wait"]
            self.series.setdefault("busy_s", Series()).add(report["step"], parts["step"])
        steps = report["step"] - self.newest.get("step", 0)
        if self._first_step and self._first_step == self.newest.get("step"):
            self.seconds = {
                name: seconds * steps / self._first_step for name, seconds in self.seconds.items()
            }
        for name, seconds in parts.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + steps * (seconds or 0.0)
        self._first_step = self._first_step or report["step"]

    def points(self, name: str) -> list[Point]:
        """Return the points of a metric; none if there is no such metric."""
        return self.series[name].points if name in self.series else []

    @property
    def losses(self) -> list[str]:
        """Names of the parts of the loss: the metrics of training that validation measures, too, or
        that stand first.

        A report begins with the epoch and the losses, and the gradient's norm follows them.
        """
        names = list(self.newest)
        end = names.index("gradient_norm") if "gradient_norm" in names else 0
        first = [name for name in names[:end] if name not in ("step", "epoch", "loss")]
        both = [
            name for name in self.series if f"validation_{name}" in self.series and name != "loss"
        ]
        return list(dict.fromkeys([*first, *both]))

    @property
    def scores(self) -> list[str]:
        """Names of the metrics that training does not have: `validation_character_error_rate`,
        `evaluation_stoi`.
        """
        prefix = "validation_"
        validated = [name for name in self.series if name.startswith(prefix)]
        only_validated = [
            name for name in validated if name.removeprefix(prefix) not in self.series
        ]
        return only_validated + [name for name in self.series if name.startswith("evaluation_")]
