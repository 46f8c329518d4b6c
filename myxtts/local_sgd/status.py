"""What a launcher of independent jobs writes and shows: its state, its PID and a table of its jobs.

No TensorFlow.
"""

import fcntl
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from myxtts.clock import format_duration
from myxtts.errors import ConfigError
from myxtts.files import write_whole
from myxtts.local_sgd.job_settings import WARMSTART
from myxtts.local_sgd.shards import CorpusShards, align_columns
from myxtts.report.metrics import read_last_report
from myxtts.terminal import detach_stdout
from myxtts.training.checkpoint_files import latest, step_of

STATE_FILE = "launcher.json"
PID_FILE = "launcher.pid"
REDRAW_S = 1.0
HEADINGS = ("job", "state", "step", "loss", "steps/s", "ETA", "restarts")


class ProcessState(BaseModel):
    """A process of the launcher, when the file was written.

    Attributes:
        state: `rejected` means exit code 2; `dead` is a process that ended together with a launcher
            that was killed.
        restarts: how often the process was restarted.
    """

    model_config = ConfigDict(strict=True)

    state: Literal["pending", "running", "done", "stopped", "rejected", "failed", "dead"] = (
        "pending"
    )
    pid: int | None = None
    restarts: int = 0


class ImmutableSettings(BaseModel):
    """Settings that cannot change after the warm start.

    Attributes:
        gpus: GPU index of each job.
        sync_every: steps between two syncs; 0 only merges at the end.
        corpus: settings that the shards depend on.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    gpus: list[int]
    warmstart_steps: int
    sync_every: int
    corpus: dict[str, Any]

    def first_difference(self, other: "ImmutableSettings") -> tuple[str, Any, Any] | None:
        """Return name, value here and value in `other` of the first setting that differs."""
        here = {**self.model_dump(exclude={"corpus"}), **self.corpus}
        there = {**other.model_dump(exclude={"corpus"}), **other.corpus}
        for name, value in there.items():
            if here.get(name) != value:
                return name, here.get(name), value
        return None


class MergeResult(BaseModel):
    """A finished merge.

    Attributes:
        job_steps: step of each job in the merge.
        exit_code: of the merging program; 1 means that the merged weights are worse than the best
            job.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    job_steps: dict[str, int]
    exit_code: int

    def describe(self, merged: Path) -> str:
        """Describe the merged run in this folder."""
        names = ", ".join(f"{name} (step {step})" for name, step in self.job_steps.items())
        if self.exit_code:
            return f"{merged} has the weights of the best job: the merge of {names} was worse"
        return f"{merged} is the merge of {names}"


class LauncherState(BaseModel):
    """Content of launcher.json.

    Attributes:
        host: machine of the launcher.
        stage: current or last stage.
        total_steps: of each job.
        shards: None until the corpus is split.
        processes: warm start, jobs and merge by name.
    """

    model_config = ConfigDict(strict=True)

    host: str
    stage: Literal["shards", "warmstart", "jobs", "merge", "done"] = "shards"
    immutable: ImmutableSettings
    total_steps: int
    shards: CorpusShards | None = None
    processes: dict[str, ProcessState] = {}
    merge: MergeResult | None = None

    def write(self, folder: Path) -> None:
        write_whole(folder / STATE_FILE, (self.model_dump_json(indent=1) + "\n").encode())


def new_state(total_steps: int, immutable: ImmutableSettings) -> LauncherState:
    """Return the initial state of a launcher on this machine."""
    return LauncherState(host=socket.gethostname(), immutable=immutable, total_steps=total_steps)


def read_state(folder: Path) -> LauncherState | None:
    """Read the state of a run's launcher; return None if there is none.

    Raises:
        ConfigError: the file is damaged.
    """
    path = folder / STATE_FILE
    try:
        return LauncherState.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"{path} cannot be read: {location}: {first['msg']}. Remove the file and start another"
            " run with --run; the runs next to it are intact, and `myxtts merge` merges them."
        ) from error


def _require_state(folder: Path) -> LauncherState:
    """Read the state of a run's launcher. Raises ConfigError if there is none."""
    state = read_state(folder)
    if state is None:
        raise ConfigError(
            f"{folder} has no independent jobs. Name their run with --run and --runs-dir."
        )
    return state


@contextmanager
def launcher_lock(folder: Path) -> Iterator[None]:
    """Let `stop_launcher` find this process for the scope; the run must be locked.

    This process locks the file of its PID, since the PID of a killed launcher may belong to another
    process by now. The file is emptied before it is locked, so a locked file has no previous PID.
    """
    with open(folder / PID_FILE, "w") as file:
        # `_running_launcher` may hold a shared lock for a moment.
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _running_launcher(folder: Path) -> int | None:
    """Return the PID of the launcher that runs in a folder on this machine; None if there is none.

    Raises:
        ConfigError: a launcher runs, but the file does not have its PID.
    """
    path = folder / PID_FILE
    with suppress(FileNotFoundError), open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = re.fullmatch(rb"([1-9][0-9]{0,9})\n", file.read(32))
            if pid is None:
                raise ConfigError(
                    f"{path} is damaged: a launcher locks it, but its PID is not there. Press"
                    " Ctrl-C where it runs."
                ) from None
            return int(pid[1])
    return None


def stop_launcher(folder: Path) -> str:
    """Send SIGTERM to the launcher of a run and wait for its end; return a message.

    Raises:
        ConfigError: there is no such run, or this process cannot stop its launcher.
    """
    state = _require_state(folder)
    if state.host != socket.gethostname():
        raise ConfigError(
            f"the launcher of {folder} cannot be stopped here: it runs on {state.host}. Stop it"
            " there."
        )
    pid = _running_launcher(folder)
    if pid is None:
        return f"no launcher of {folder} is running; it ended in stage {state.stage}"
    try:
        # It may have just ended.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    except PermissionError as error:
        raise ConfigError(
            f"the launcher of {folder} (process {pid}) cannot be stopped: another user started it."
            " Ask them."
        ) from error
    # The lock is free once the launcher has ended.
    with open(folder / PID_FILE) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    return (
        f"stopped the launcher of {folder} (process {pid}); resume with the same command and"
        " --resume"
    )


def status_report(folder: Path) -> str:
    """Describe the state of a run's launcher and jobs, for another terminal.

    Raises:
        ConfigError: there is no such run.
    """
    state = _require_state(folder)
    if state.host != socket.gethostname():
        launcher = f"started on {state.host}; check there whether it is running"
    elif pid := _running_launcher(folder):
        launcher = f"running (process {pid})"
    else:
        launcher = "not running" if state.stage == "done" else "not running; resume with --resume"
        # They ran when the launcher was killed, and died with it.
        for process in state.processes.values():
            if process.state == "running":
                process.state = "dead"
    lines = [
        f"run            {folder}",
        f"stage          {state.stage}",
        f"launcher       {launcher}",
    ]
    if state.processes:
        lines += format_table(folder, state)
    if state.merge is not None:
        lines.append(f"result         {state.merge.describe(folder / 'merged')}")
    return "\n".join(lines)


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
        loss = "-" if progress.loss is None else f"{progress.loss:.3f}"
        speed = "-" if progress.steps_per_s is None else f"{progress.steps_per_s:.2f}"
        steps = f"{progress.step} of {total}"
        rows.append((name, process.state, steps, loss, speed, eta, str(process.restarts)))
    return rows


def format_table(folder: Path, state: LauncherState) -> list[str]:
    """Return the lines of a run's table with headings."""
    return align_columns([HEADINGS, *table_rows(folder, state)], words=2)


class Display:
    """Prints lines that stay, and below them a table that each new table replaces.

    Args:
        every_s: seconds between two tables where the output is not a terminal.
        clock_s: returns the time.
    """

    def __init__(self, every_s: float, clock_s: Callable[[], float] = time.monotonic):
        # `>&-` in a shell leaves no stdout.
        self._in_place = sys.stdout is not None and sys.stdout.isatty()
        self._every_s = REDRAW_S if self._in_place else every_s
        self._clock_s = clock_s
        self._shown_s = clock_s()
        self._drawn_lines = 0

    def print(self, line: str, error: bool = False) -> None:
        """Print a line that stays; an error goes to stderr."""
        self._erase_table()
        if error:
            with suppress(OSError):
                print(line, flush=True, file=sys.stderr)
        else:
            self._write(f"{line}\n")

    def is_due(self) -> bool:
        """Return whether it is time for the next table."""
        return self._clock_s() - self._shown_s >= self._every_s

    def show_table(self, lines: Sequence[str]) -> None:
        self._shown_s = self._clock_s()
        self._erase_table()
        if self._in_place:
            # Wrapped or scrolled lines cannot be erased.
            columns, rows = shutil.get_terminal_size()
            lines = [line[: columns - 1] for line in lines[: rows - 1]]
            self._drawn_lines = len(lines)
        self._write("".join(f"{line}\n" for line in lines))

    def _erase_table(self) -> None:
        if self._drawn_lines:
            self._write(f"\x1b[{self._drawn_lines}F\x1b[J")
            self._drawn_lines = 0

    @staticmethod
    def _write(text: str) -> None:
        """Write a text; a closed terminal must not keep the jobs from saving."""
        try:
            print(text, end="", flush=True)
        except OSError as reason:
            detach_stdout(reason, "The jobs go on")
