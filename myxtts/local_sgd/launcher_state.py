"""State of a launcher of independent jobs, in a file that other terminals read. No TensorFlow."""

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from select import select
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from myxtts.distributed.processes import start_ticks
from myxtts.errors import ConfigError
from myxtts.files import write_whole
from myxtts.local_sgd.shards import CorpusShards

FILE = "launcher.json"


class ProcessState(BaseModel):
    """A process, identified by its PID and start time.

    Attributes:
        state: when the file was written. `rejected` means exit code 2; `dead` is a process that ended together with a
            launcher that was killed.
        start_ticks: start time in clock ticks since boot.
        restarts: how often the process was restarted.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    state: Literal["pending", "running", "done", "stopped", "rejected", "failed", "dead"] = "pending"
    pid: int | None = None
    start_ticks: int | None = None
    restarts: int = 0

    @classmethod
    def running(cls, pid: int, restarts: int = 0) -> "ProcessState":
        return cls(state="running", pid=pid, start_ticks=start_ticks(pid), restarts=restarts)

    def is_alive(self) -> bool:
        """Return whether the process runs on this machine."""
        return self.pid is not None and self.start_ticks is not None and start_ticks(self.pid) == self.start_ticks


class ImmutableSettings(BaseModel):
    """Settings that cannot change after the warm start.

    Attributes:
        gpus: GPU index of each job.
        warmstart_steps: length of the warm start.
        sync_every: steps between two syncs; 0 only merges at the end.
        corpus: settings that the shards depend on.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    gpus: list[int]
    warmstart_steps: int
    sync_every: int
    corpus: dict[str, Any]

    def first_difference(self, other: "ImmutableSettings") -> tuple[str, Any, Any] | None:
        """Return the name, the value here and the value in `other` of the first setting that differs."""
        here, there = ({**settings.model_dump(exclude={"corpus"}), **settings.corpus} for settings in (self, other))
        return next(((name, here.get(name), value) for name, value in there.items() if here.get(name) != value), None)


class MergeResult(BaseModel):
    """A finished merge.

    Attributes:
        job_steps: step of each job in the merge.
        exit_code: of the merging program; 1 means that the merged weights are worse than the best job.
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
    """Content of the file.

    Attributes:
        host: machine of the launcher.
        stage: current or last stage.
        total_steps: of each job.
        shards: None until the corpus is split.
        processes: warm start, jobs and merge by name.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    host: str
    launcher: ProcessState
    stage: Literal["shards", "warmstart", "jobs", "merge", "done"] = "shards"
    immutable: ImmutableSettings
    total_steps: int
    shards: CorpusShards | None = None
    processes: dict[str, ProcessState] = {}
    merge: MergeResult | None = None

    def write(self, folder: Path) -> None:
        write_whole(folder / FILE, (self.model_dump_json(indent=1) + "\n").encode())


def read_state(folder: Path) -> LauncherState | None:
    """Read the state of a run's launcher; return None if there is none.

    Raises:
        ConfigError: the file is damaged.
    """
    path = folder / FILE
    try:
        return LauncherState.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"{path} cannot be read: {location}: {first['msg']}. Remove the file and start another run with --run; the "
            "runs beside it are intact, and `myxtts merge` merges them."
        ) from error


def require_state(folder: Path) -> LauncherState:
    """Read the state of a run's launcher. Raises ConfigError if there is none."""
    state = read_state(folder)
    if state is None:
        raise ConfigError(f"{folder} has no independent jobs. Name their run with --run and --runs-dir.")
    return state


def new_state(total_steps: int, immutable: ImmutableSettings) -> LauncherState:
    """Return the initial state, with this process as the launcher."""
    launcher = ProcessState.running(os.getpid())
    return LauncherState(host=socket.gethostname(), launcher=launcher, immutable=immutable, total_steps=total_steps)


def stop_launcher(folder: Path) -> str:
    """Send SIGTERM to the launcher of a run and wait for its end; return a message.

    Raises:
        ConfigError: there is no such run, or this process cannot stop its launcher.
    """
    state = require_state(folder)
    launcher = state.launcher
    if state.host != socket.gethostname():
        raise ConfigError(f"the launcher of {folder} cannot be stopped here: it runs on {state.host}. Stop it there.")
    if launcher.pid is None or launcher.start_ticks is None:
        raise ConfigError(
            f"the launcher of {folder} cannot be stopped: this system reports no start times, so its PID may belong to "
            "another process by now. Press Ctrl-C where it runs."
        )
    process = None
    with suppress(ProcessLookupError):
        process = os.pidfd_open(launcher.pid)  # refers to this process even after the PID is reused
    if process is None or not launcher.is_alive():
        return f"no launcher of {folder} is running; it ended in stage {state.stage}"
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
    except PermissionError as error:
        raise ConfigError(
            f"the launcher of {folder} (process {launcher.pid}) cannot be stopped: another user started it. Ask them."
        ) from error
    select([process], [], [])  # readable once the process has ended
    return f"stopped the launcher of {folder} (process {launcher.pid}); resume with the same command and --resume"
