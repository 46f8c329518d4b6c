"""Progress of all jobs as a table: redrawn in place on a terminal, printed periodically elsewhere.
No TensorFlow.
"""

import shutil
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from myxtts.clock import format_duration
from myxtts.local_sgd.job_settings import WARMSTART
from myxtts.local_sgd.launcher_state import LauncherState, require_state, running_launcher
from myxtts.report.metrics import read_last_report
from myxtts.terminal import detach_stdout
from myxtts.training.checkpoint_files import latest, step_of

REDRAW_S = 1.0
HEADINGS = ("job", "state", "step", "loss", "steps/s", "ETA", "restarts")


class Progress(NamedTuple):
    """Progress of a run.

    Attributes:
        step: of the newest report or checkpoint.
        loss, steps_per_s, remaining_s: of the newest report; None without one.
    """

    step: int
    loss: float | None = None
    steps_per_s: float | None = None
    remaining_s: float | None = None


def read_progress(run: Path) -> Progress:
    """Read the progress of a run from its files."""
    checkpoint = latest(run / "checkpoints")
    report = read_last_report(run / "metrics.jsonl")
    step = max(report.get("step", 0), step_of(checkpoint) if checkpoint else 0)
    return Progress(step, report.get("loss"), report.get("steps_per_s"), report.get("remaining_s"))


def table_rows(folder: Path, state: LauncherState) -> list[tuple[str, ...]]:
    """Return the rows of a run's table, without headings."""
    rows: list[tuple[str, ...]] = []
    for name, process in state.processes.items():
        if name == "merge":
            continue
        progress = read_progress(folder / name)
        total = state.immutable.warmstart_steps if name == WARMSTART else state.total_steps
        eta = "-"
        if process.state == "running" and progress.remaining_s is not None:
            eta = format_duration(progress.remaining_s)
        rows.append(
            (
                name,
                process.state,
                f"{progress.step} of {total}",
                "-" if progress.loss is None else f"{progress.loss:.3f}",
                "-" if progress.steps_per_s is None else f"{progress.steps_per_s:.2f}",
                eta,
                str(process.restarts),
            )
        )
    return rows


def format_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with headings: words on the left, numbers right-aligned."""
    lines = [HEADINGS, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]


def status_report(folder: Path) -> str:
    """Describe the state of a run's launcher and jobs, for another terminal.

    Raises:
        ConfigError: there is no such run.
    """
    state = require_state(folder)
    if state.host != socket.gethostname():
        launcher = f"started on {state.host}; check there whether it is running"
    else:
        pid = running_launcher(folder)
        if pid is not None:
            launcher = f"running (process {pid})"
        else:
            launcher = "not running" + ("" if state.stage == "done" else "; resume with --resume")
            for process in state.processes.values():
                if process.state == "running":  # when the launcher was killed
                    process.state = "dead"
    lines = [
        f"run            {folder}",
        f"stage          {state.stage}",
        f"launcher       {launcher}",
    ]
    if state.processes:
        lines += format_table(table_rows(folder, state))
    if state.merge is not None:
        lines.append(f"result         {state.merge.describe(folder / 'merged')}")
    return "\n".join(lines)


class Display:
    """Prints lines that stay, and below them a table that each new table replaces.

    Args:
        every_s: seconds between two tables where the output is not a terminal.
        clock_s: returns the time.
    """

    def __init__(self, every_s: float, clock_s: Callable[[], float] = time.monotonic):
        self._in_place = sys.stdout is not None and sys.stdout.isatty()  # None: `>&-` in a shell
        self._every_s = REDRAW_S if self._in_place else every_s
        self._clock_s, self._shown_s, self._drawn_lines = clock_s, clock_s(), 0

    def print(self, line: str, error: bool = False) -> None:
        """Print a line that stays; an error goes to stderr."""
        self._erase_table()
        _print(line, error)

    def is_due(self) -> bool:
        """Return whether it is time for the next table."""
        return self._clock_s() - self._shown_s >= self._every_s

    def show_table(self, lines: Sequence[str]) -> None:
        self._shown_s = self._clock_s()
        if self._in_place:
            columns, rows = shutil.get_terminal_size()
            lines = [
                line[: columns - 1] for line in lines[: rows - 1]
            ]  # wrapped or scrolled lines cannot be erased
        self._erase_table()
        _print("\n".join(lines))
        self._drawn_lines = len(lines) if self._in_place else 0

    def _erase_table(self) -> None:
        if self._drawn_lines:
            _print(f"\x1b[{self._drawn_lines}F\x1b[J", end="")
            self._drawn_lines = 0


def _print(text: str, error: bool = False, end: str = "\n") -> None:
    """Print a text; a closed terminal must not keep the jobs from saving."""
    if error:
        with suppress(OSError):
            print(text, flush=True, file=sys.stderr)
        return
    try:
        print(text, flush=True, end=end)
    except OSError as reason:
        detach_stdout(reason, "The jobs go on")
