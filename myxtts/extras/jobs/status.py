"""The state, PID, progress and page of a launcher of independent jobs. No TensorFlow."""

import fcntl
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from myxtts.base.clock import format_duration
from myxtts.base.errors import ConfigError
from myxtts.base.files import locked_file, write_whole
from myxtts.checkpoints.files import latest, step_of
from myxtts.extras.jobs.shards import CorpusShards
from myxtts.report.metrics import History, read_last_report
from myxtts.report.overview import CURVES, document, sync_marks, write_overview

WARMSTART = "warmstart"
STATE_FILE = "launcher.json"
PID_FILE = "launcher.pid"
JOBS_REFRESH_S = 10.0


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class ProcessState(_Strict):
    """A process of the launcher, when the file was written.

    `rejected` means exit code 2; `dead` is a process that ended with a launcher that was killed.
    """

    state: Literal["pending", "running", "done", "stopped", "rejected", "failed", "dead"]
    pid: int | None = None
    restarts: int = 0


class MergeResult(_Strict):
    """A finished merge; exit code 1 means that the merged weights are worse than the best job."""

    job_steps: dict[str, int]
    exit_code: int

    def describe(self, merged: object) -> str:
        """Describe the merged run of this name."""
        names = ", ".join(f"{name} (step {step})" for name, step in self.job_steps.items())
        if self.exit_code:
            return f"{merged} has the weights of the best job: the merge of {names} was worse"
        return f"{merged} is the merge of {names}"


class ImmutableSettings(_Strict):
    """Settings that cannot change after the warm start; `corpus`: those that shards depend on."""

    gpus: list[int]
    warmstart_steps: int
    sync_every: int
    corpus: dict[str, Any]


class LauncherState(_Strict):
    """Content of launcher.json.

    Attributes:
        stage: current or last stage.
        shards: None until the corpus is split.
    """

    host: str
    stage: Literal["shards", "warmstart", "jobs", "merge", "done"] = "shards"
    immutable: ImmutableSettings
    total_steps: int
    shards: CorpusShards | None = None
    processes: dict[str, ProcessState] = {}
    merge: MergeResult | None = None

    def steps_of(self, name: str) -> int:
        """Return the step that the warm start or a job ends with."""
        return self.immutable.warmstart_steps if name == WARMSTART else self.total_steps

    def write(self, folder: Path) -> None:
        write_whole(folder / STATE_FILE, (self.model_dump_json(indent=1) + "\n").encode())


def read_state(folder: Path) -> LauncherState | None:
    """Read the state of a run's launcher, if there is one. Raises ConfigError if it is damaged."""
    path = folder / STATE_FILE
    try:
        return LauncherState.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"{path} cannot be read: {'.'.join(map(str, first['loc']))}: {first['msg']}. Start"
            " another run with --run; the runs next to the file are intact."
        ) from error


def _require_state(folder: Path) -> LauncherState:
    state = read_state(folder)
    if state is None:
        raise ConfigError(
            f"{folder} has no independent jobs. Name their run with --run and --runs-dir."
        )
    return state


@contextmanager
def launcher_lock(folder: Path) -> Iterator[None]:
    """Let `stop_launcher` find this process for the scope; the run must be locked.

    Its PID alone would not do, since that of a killed launcher may be another process's by now.
    """
    # Before the lock, so that a locked file has the PID of who locks it.
    write_whole(folder / PID_FILE, f"{os.getpid()}\n".encode())
    with locked_file(folder / PID_FILE):
        yield


def _running_launcher(folder: Path) -> int | None:
    """Return the PID of the launcher that runs in a folder, on this machine, if there is one."""
    with suppress(FileNotFoundError), open(folder / PID_FILE) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(file.read())
    return None


def stop_launcher(folder: Path) -> str:
    """Send SIGTERM to the launcher of a run and wait for its end; return a message."""
    state = _require_state(folder)
    if state.host != socket.gethostname():
        raise ConfigError(f"the launcher of {folder} runs on {state.host}. Stop it there.")
    pid = _running_launcher(folder)
    if pid is None:
        return f"no launcher of {folder} is running; it ended in stage {state.stage}"
    # It may have just ended.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    # The lock is free once the launcher has ended.
    with open(folder / PID_FILE) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    return f"stopped the launcher of {folder} (process {pid}); resume with --resume"


def status_report(folder: Path) -> str:
    """Describe the state of a run's launcher and jobs, for another terminal."""
    state = _require_state(folder)
    launcher = "done" if state.stage == "done" else "not running; resume with --resume"
    if state.host != socket.gethostname():
        launcher = f"started on {state.host}; check there whether it is running"
    elif pid := _running_launcher(folder):
        launcher = f"running (process {pid})"
    else:
        # They ran when the launcher was killed, and died with it.
        for process in state.processes.values():
            if process.state == "running":
                process.state = "dead"
    lines = [f"run            {folder}", f"stage          {state.stage}"]
    lines += [f"launcher       {launcher}", *progress_lines(folder, state)]
    if state.merge is not None:
        lines.append(f"result         {state.merge.describe(folder / 'merged')}")
    return "\n".join(lines)


def read_progress(run: Path) -> dict[str, Any]:
    """Return the newest report of a run, with the step of its newest report or checkpoint."""
    checkpoint = latest(run / "checkpoints")
    report = read_last_report(run / "metrics.jsonl")
    step = max(report.get("step", 0), step_of(checkpoint) if checkpoint else 0)
    return report | {"step": step}


def progress_lines(folder: Path, state: LauncherState) -> Iterator[str]:
    """Yield a line with the progress of the warm start and of each job; report.html has more."""
    for name, process in state.processes.items():
        if name == "merge":
            continue
        progress = read_progress(folder / name)
        parts = [process.state, f"step {progress['step']} of {state.steps_of(name)}"]
        if progress.get("loss") is not None:
            parts.append(f"loss {progress['loss']:.3f}")
        if process.restarts:
            parts.append(f"restarts: {process.restarts}")
        if process.state == "running":
            # The PID of a process that has ended may be another one's.
            parts.append(f"process {process.pid}")
            if progress.get("remaining_s") is not None:
                parts.append(f"{format_duration(progress['remaining_s'])} left")
        yield f"{name:<14} {', '.join(parts)}"


class JobsPage:
    """The page of several jobs in a folder, from their metrics and the launcher's state."""

    def __init__(self, folder: Path, state: LauncherState):
        self._folder, self._state = folder, state
        self._histories: dict[str, History] = {}
        self._written_s = -JOBS_REFRESH_S

    def refresh(self) -> None:
        """Write the page if it is old enough; a full disk leaves the previous one."""
        if time.monotonic() - self._written_s >= JOBS_REFRESH_S:
            with suppress(OSError):
                self.write()

    def write(self) -> Path:
        """Write report.html of the jobs, and index.html of all runs; return the former's path."""
        self._written_s = time.monotonic()
        folder, state = self._folder, self._state
        jobs = {name: self._job(name) for name in state.processes if name != "merge"}
        merge = "The jobs are merged when all have ended."
        if state.merge is not None:
            merge = f"{state.merge.describe('The result')}."
        page = {
            "name": folder.name,
            "stage": state.stage,
            "jobs": jobs,
            "marks": merge_marks(state, max((job["step"] for job in jobs.values()), default=0)),
            "merge": merge,
        }
        write_whole(folder / "report.html", document("jobs", page, JOBS_REFRESH_S))
        with suppress(OSError):
            # The folder of all runs may be another user's.
            write_overview(folder.parent)
        return folder / "report.html"

    def _job(self, name: str) -> dict[str, Any]:
        """Return what the page shows of a job, or of the warm start of all jobs."""
        path = self._folder / name / "metrics.jsonl"
        history = self._histories.setdefault(name, History(path))
        history.update()
        gpu = None if name == WARMSTART else int(name.removeprefix("gpu"))
        return {
            "process": self._state.processes[name].model_dump(),
            "step": history.step,
            "total": self._state.steps_of(name),
            "gpu": gpu,
            "report": history.newest,
            "series": {key: history.points(key) for key in CURVES},
        }


def merge_marks(state: LauncherState, step: int) -> list[tuple[int, str]]:
    """Return a mark at each sync of the jobs up to a step, and at their final merge."""
    every, total = state.immutable.sync_every, state.total_steps
    # The warm start is one job, which averages no weights.
    marks = sync_marks(every, step, after=state.immutable.warmstart_steps)
    if every and step >= total and total % every:
        # The last sync is at the end, whatever the period is.
        marks.append((total, "weights averaged"))
    if merge := state.merge:
        marks.append((max(merge.job_steps.values()), f"merge of {', '.join(merge.job_steps)}"))
    return marks
