"""What a launcher of independent jobs knows and has started, as a file that other terminals read. No TensorFlow."""

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

FILE = "independent.json"


class Process(BaseModel):
    """A process by its number and when it began, so that another one that gets its number is not taken for it.

    Attributes:
        state: what became of it; `running` is of when the file was written, and `gone` what it turns out to be
            where it ended with a launcher that was killed.
        restarts: how often it was started again.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    state: Literal["waiting", "running", "done", "stopped", "refused", "lost", "gone"] = "waiting"
    pid: int | None = None
    started_ticks: int | None = None
    restarts: int = 0

    @classmethod
    def running(cls, pid: int, restarts: int = 0) -> "Process":
        return cls(state="running", pid=pid, started_ticks=start_ticks(pid), restarts=restarts)

    def runs(self) -> bool:
        """Whether it runs on this machine."""
        return self.started_ticks is not None and start_ticks(self.pid) == self.started_ticks


class Shards(BaseModel):
    """`Parts` as JSON."""

    model_config = ConfigDict(extra="forbid", strict=True)

    train: str
    parts: list[str]
    held_out: str | None
    audio_root: str
    table: str

    @classmethod
    def of(cls, parts: CorpusShards) -> "Shards":
        held_out = None if parts.held_out is None else str(parts.held_out)
        return cls(
            train=str(parts.train),
            parts=[str(path) for path in parts.shards],
            held_out=held_out,
            audio_root=str(parts.audio_root),
            table=parts.table,
        )

    def holds(self, part: int) -> str:
        """What a part holds, such as "190 utterances, 10.25 minutes"."""
        heads, row = (self.table.splitlines()[line].split() for line in (0, part + 1))
        cells = dict(zip(heads, row, strict=True))
        return f"{cells['utterances']} utterances, {cells['minutes']} minutes"


class FixedSettings(BaseModel):
    """What a run keeps once its start has been trained.

    Attributes:
        gpus: number of the GPU of each job.
        warmstart_steps: that the common start takes.
        sync_every: steps of a round; 0 merges at the end only.
        corpus: settings that the parts depend on, by name.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    gpus: list[int]
    warmstart_steps: int
    sync_every: int
    corpus: dict[str, Any]

    def difference(self, now: "FixedSettings") -> tuple[str, Any, Any] | None:
        """Name, value here and value there of the first thing that is not the same."""
        mine, theirs = ({**one.model_dump(exclude={"corpus"}), **one.corpus} for one in (self, now))
        return next(((name, mine.get(name), value) for name, value in theirs.items() if mine.get(name) != value), None)


class Merged(BaseModel):
    """A merge: the step of each job that is in it, and what the program that made it ended with."""

    model_config = ConfigDict(extra="forbid", strict=True)

    steps: dict[str, int]
    code: int

    def told(self, merged: Path) -> str:
        """What it is.

        Args:
            merged: its folder.
        """
        names = ", ".join(f"{name} (step {step})" for name, step in self.steps.items())
        if self.code:
            return f"{merged} has the weights of the best job: the merge of {names} was worse"
        return f"{merged} is the merge of {names}"


class LauncherState(BaseModel):
    """The file.

    Attributes:
        host: where the launcher runs.
        stage: what it does, or did last.
        total_steps: of each job.
        split: None before the corpus was.
        processes: start, each job and the merge, by name.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    host: str
    launcher: Process
    stage: Literal["split", "start", "jobs", "merge", "done"] = "split"
    fixed: FixedSettings
    total_steps: int
    split: Shards | None = None
    processes: dict[str, Process] = {}
    merged: Merged | None = None

    def write(self, folder: Path) -> None:
        write_whole(folder / FILE, (self.model_dump_json(indent=1) + "\n").encode())


def read_record(folder: Path) -> LauncherState | None:
    """What the launcher of a run wrote; None where there was none.

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
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"{path} cannot be read: {where}: {first['msg']}. Remove it and start another run by --run; the "
            "runs beside it are as they were, and utilities/merge_checkpoints.py merges them."
        ) from error


def new_record(total_steps: int, fixed: FixedSettings) -> LauncherState:
    """Of this process."""
    return LauncherState(
        host=socket.gethostname(), launcher=Process.running(os.getpid()), fixed=fixed, total_steps=total_steps
    )


def stop_launcher(folder: Path) -> str:
    """Ask the launcher of a run to stop, by SIGTERM, and wait until it has ended; gives what to say.

    Raises:
        ConfigError: there is no such run, or its launcher is not ours to stop.
    """
    record = required_record(folder)
    if record.host != socket.gethostname():
        raise ConfigError(f"the launcher of {folder} was to be stopped, but it runs on {record.host}. Stop it there.")
    if record.launcher.started_ticks is None:
        raise ConfigError(
            f"the launcher of {folder} was to be stopped, but this system does not tell when a process began, so that "
            "its number alone may be another's by now. Press Ctrl-C where it runs."
        )
    pid, process = record.launcher.pid, None
    with suppress(ProcessLookupError):
        process = os.pidfd_open(pid)  # from here on the number is that of this process and no other
    if process is None or not record.launcher.runs():
        return f"no launcher of {folder} runs; it ended at: {record.stage}"
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
    except PermissionError as error:
        raise ConfigError(
            f"the launcher of {folder} (process {pid}) was to be stopped, but another user started it. Ask them."
        ) from error
    select([process], [], [])  # ready when it has ended
    return f"stopped the launcher of {folder} (process {pid}); the same command with --resume goes on"


def required_record(folder: Path) -> LauncherState:
    """Raises ConfigError where no launcher has worked in a folder."""
    record = read_record(folder)
    if record is None:
        raise ConfigError(
            f"{folder} was asked for, but no independent jobs were started there. Name the run by --run and --runs-dir."
        )
    return record
