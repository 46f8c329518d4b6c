"""How far all jobs are, as one table: redrawn in place on a terminal, printed now and then elsewhere. No TensorFlow."""

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from myxtts.local_sgd.launcher_state import LauncherState, required_record
from myxtts.training.checkpoint_files import latest, step_of

TAIL_BYTES = 1 << 16  # of metrics.jsonl: some hundred reports
REDRAW_S = 1.0
HEADS = ("job", "state", "step", "loss", "steps/s", "ETA", "restarts")


class Progress(NamedTuple):
    """Of one run.

    Attributes:
        step: of its newest report or checkpoint.
        loss, steps_per_s: of its newest report, if it has one.
    """

    step: int
    loss: float | None = None
    steps_per_s: float | None = None


def progress_of(run: Path) -> Progress:
    """How far a run is by its files."""
    checkpoint = latest(run / "checkpoints")
    reported = last_report(run / "metrics.jsonl")
    step = max(reported.get("step", 0), step_of(checkpoint) if checkpoint else 0)
    return Progress(step, reported.get("loss"), reported.get("steps_per_s"))


def last_report(metrics: Path) -> dict[str, Any]:
    """The newest whole line of a metrics.jsonl that has a loss; empty where there is none."""
    try:
        with open(metrics, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - TAIL_BYTES, 0))
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return {}
    for line in reversed(lines):
        try:
            report = json.loads(line)
        except ValueError:  # the last one may lack its end, and the first one of the tail its beginning
            continue
        if "loss" in report:
            return report
    return {}


def rows_of(folder: Path, record: LauncherState) -> list[tuple[str, ...]]:
    """The table of a run by its record and its files, without heads."""
    rows = []
    for name, process in record.processes.items():
        if name == "merge":
            continue
        progress = progress_of(folder / name)
        total = record.fixed.warmstart_steps if name == "start" else record.total_steps
        moves = process.state == "running" and progress.steps_per_s
        left_s = (total - progress.step) / progress.steps_per_s if moves else None
        rows.append(
            (
                name,
                process.state,
                f"{progress.step} of {total}",
                "-" if progress.loss is None else f"{progress.loss:.3f}",
                "-" if progress.steps_per_s is None else f"{progress.steps_per_s:.2f}",
                "-" if left_s is None else duration(left_s),
                str(process.restarts),
            )
        )
    return rows


def duration(seconds: float) -> str:
    """Such as 0:09 or 3:07:12."""
    minutes, rest = divmod(round(max(seconds, 0.0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines: words to the left, numbers to the right."""
    lines = [HEADS, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shifts = [str.ljust if i < 2 else str.rjust for i in range(len(HEADS))]
    return ["  ".join(shift(*of) for shift, *of in zip(shifts, line, widths, strict=True)) for line in lines]


def status(folder: Path) -> str:
    """What there is to say of a run from another terminal.

    Raises:
        ConfigError: there is no such run.
    """
    record = required_record(folder)
    for process in record.processes.values():
        if process.state == "running" and record.host == socket.gethostname() and not process.runs():
            process.state = "gone"
    if record.host != socket.gethostname():
        launcher = f"was started on {record.host}; ask there whether it runs"
    elif record.launcher.runs():
        launcher = f"runs (process {record.launcher.pid})"
    else:
        launcher = "does not run" + ("" if record.stage == "done" else "; --resume goes on")
    lines = [f"run            {folder}", f"stage          {record.stage}", f"launcher       {launcher}"]
    if record.processes:
        lines += table(rows_of(folder, record))
    if record.merged is not None:
        lines.append(f"result         {record.merged.told(folder / 'merged')}")
    return "\n".join(lines)


class Display:
    """Lines that stay, and a table below them that does not.

    Args:
        every_s: between two tables where the output is no terminal.
        clock_s: time.
    """

    def __init__(self, every_s: float, clock_s: Callable[[], float] = time.monotonic):
        self._in_place = sys.stdout.isatty()
        self._every_s = REDRAW_S if self._in_place else every_s
        self._clock_s, self._shown_s, self._drawn = clock_s, clock_s(), 0

    def say(self, line: str, error: bool = False) -> None:
        """A line that stays: an error on stderr."""
        self._erase()
        _print(line, file=sys.stderr if error else sys.stdout)

    def is_due(self) -> bool:
        return self._clock_s() - self._shown_s >= self._every_s

    def show(self, lines: Sequence[str]) -> None:
        """A table, in the place of the last one on a terminal."""
        self._shown_s = self._clock_s()
        if self._in_place:
            columns, rows = shutil.get_terminal_size()
            lines = [line[: columns - 1] for line in lines[: rows - 1]]  # what wraps or scrolls cannot be erased
        self._erase()
        _print("\n".join(lines))
        self._drawn = len(lines) if self._in_place else 0

    def _erase(self) -> None:
        if self._drawn:
            _print(f"\x1b[{self._drawn}F\x1b[J", end="")
            self._drawn = 0


def _print(text: str, **options) -> None:
    with suppress(OSError):  # a terminal that was closed must not keep the jobs from saving
        print(text, flush=True, **options)
