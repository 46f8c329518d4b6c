"""Launches the workers of a job on this machine and ends all of them when one fails. No TensorFlow.

TF_CONFIG tells each worker the cluster.
"""

import importlib.util
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from myxtts.distributed.cluster import Cluster
from myxtts.distributed.processes import (
    Exit,
    GracePeriods,
    ProgramSpec,
    Supervisor,
    SupervisorEvents,
    gpu_environ,
    visible_gpus,
)
from myxtts.distributed.signals import counted_stop_signals
from myxtts.errors import ConfigError, PlacementError
from myxtts.files import make_folder
from myxtts.machine import usable_cores
from myxtts.terminal import detach_stdout

# The other workers notice a failure and report it themselves, after a missing heartbeat at the
# latest (20 s). With these periods the whole job ends within a minute.
GRACE = GracePeriods(notice_s=22.0, save_s=14.0)


@dataclass(frozen=True)
class LaunchSpec:
    """The workers to launch.

    Attributes:
        command: of each worker, as `find_program` returns it.
        workers: addresses of the whole cluster.
        local: indices of the workers to start on this machine.
        logs: folder for worker-N.log.
        cores_per_worker: pins each worker to this many cores of its own; 0 does not pin.
        gpus_per_worker: shows each worker this many GPUs of its own; None shows all GPUs to all
            workers.
    """

    command: tuple[str, ...]
    workers: tuple[str, ...]
    local: tuple[int, ...]
    logs: Path
    cores_per_worker: int = 0
    gpus_per_worker: int | None = None


def find_program(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs a Python file, or `-m` and a module, with arguments.

    Raises:
        ConfigError: there is no such program.
    """
    words = [word for i, word in enumerate(words) if i or word != "--"]
    if not words:
        raise ConfigError("no program was given. Name it after --, such as -- train --run first.")
    if words[0] == "-m":
        if len(words) == 1 or importlib.util.find_spec(words[1].partition(".")[0]) is None:
            raise ConfigError(
                f"-m {' '.join(words[1:2])} was given, but there is no such module. Check the name."
            )
    elif not Path(words[0]).is_file():
        raise ConfigError(
            f"the program '{words[0]}' was given, but there is no such file under {Path.cwd()}. "
            "Name a Python file, or -m and a module."
        )
    return sys.executable, "-u", *words


def local_workers(count: int) -> tuple[str, ...]:
    """Return addresses on this machine with free ports."""
    # All sockets are open at once, so that no port is returned twice.
    with ExitStack() as resources:
        sockets = [resources.enter_context(socket.socket()) for _ in range(count)]
        for unused in sockets:
            unused.bind(("127.0.0.1", 0))
        return tuple(f"127.0.0.1:{unused.getsockname()[1]}" for unused in sockets)


def launch(spec: LaunchSpec) -> int:
    """Run the workers until all have ended.

    Ctrl-C, SIGTERM or a hangup stops them; a second Ctrl-C kills them.

    Returns:
        the exit code: 0 if all workers succeed; otherwise the code of the first failure, or 128
            plus the number of the signal that killed the worker; 130, 143 or 129 if the launcher
            was stopped.

    Raises:
        PlacementError: there are too few cores or GPUs.
        ConfigError: the folder for the logs cannot be made.
    """
    cores = _divide_cores(spec)
    gpus = _divide_gpus(spec)
    programs = [
        ProgramSpec(
            name=f"worker {index}",
            command=spec.command,
            log=spec.logs / f"worker-{index}.log",
            title=spec.workers[index],
            environ={**environ, "TF_CONFIG": Cluster(spec.workers, index).tf_config()},
            cores=pinned,
        )
        for index, pinned, environ in zip(spec.local, cores, gpus, strict=True)
    ]
    make_folder(spec.logs, "--logs")
    with counted_stop_signals() as stop:
        exits = Supervisor(stop, _PrefixedOutput(), grace=GRACE).run(programs)
    failures = [
        exit
        for exit in exits
        if exit.outcome in ("failed", "rejected") and not stop.caused(exit.code)
    ]
    if not failures:
        return stop.exit_code
    first_failure = min(failures, key=lambda exit: (_severity(exit), programs.index(exit.program)))
    print(_failure_message(first_failure), file=sys.stderr)
    return first_failure.code if first_failure.code > 0 else 128 - first_failure.code


def _severity(exit: Exit) -> int:
    """Return 0 for a killed worker, 1 for a defect, 2 for a user's error, 3 for a lost worker.

    The loss of another worker is the consequence of one of the former.
    """
    if exit.code != 2:
        return 0 if exit.code < 0 else 1
    return 3 if any(line.startswith("error: worker ") for line in exit.process.last_lines) else 2


def _failure_message(exit: Exit) -> str:
    worker = f"{exit.program.name} ({exit.program.title})"
    if exit.code == 2:
        return (
            f"error: {worker} ended with exit code 2; its message is above and in"
            f" {exit.program.log}"
        )
    return f"error: {worker} {exit.process.failure_report()}"


def _divide_cores(spec: LaunchSpec) -> list[frozenset[int] | None]:
    """Return the cores of each worker."""
    size = spec.cores_per_worker
    count = len(spec.local)
    if not size:
        return [None] * count
    cores = usable_cores()
    if not cores:
        raise PlacementError(
            "--cores-per-worker was given, but this system cannot pin processes. Leave it out."
        )
    if size * count > len(cores):
        raise PlacementError(
            f"{count} workers with {size} cores each were requested, but this process may use"
            f" {len(cores)} cores. Lower --cores-per-worker or --workers, or leave out"
            " --cores-per-worker."
        )
    return [frozenset(cores[i * size : (i + 1) * size]) for i in range(count)]


def _divide_gpus(spec: LaunchSpec) -> list[dict[str, str]]:
    """Return the environment of each worker that shows it its GPUs."""
    size = spec.gpus_per_worker
    count = len(spec.local)
    if size is None:
        return [{}] * count
    gpus = visible_gpus() if size else []
    if size * count > len(gpus):
        raise PlacementError(
            f"{count} workers with {size} GPUs each were requested, but this process sees"
            f" {len(gpus)} GPUs. Lower --gpus-per-worker or --workers; --gpus-per-worker 0 trains"
            " on the CPU."
        )
    return [gpu_environ(gpus[i * size : (i + 1) * size]) for i in range(count)]


class _PrefixedOutput(SupervisorEvents):
    """Prints each line with the name of its worker, and an error that all report only once."""

    def __init__(self) -> None:
        self._errors: set[str] = set()

    def on_line(self, program: ProgramSpec, line: str) -> None:
        if line not in self._errors:
            try:
                print(f"[{program.name}] {line}", flush=True)
            # A closed terminal must not keep the workers from saving.
            except OSError as error:
                detach_stdout(error, "The workers go on")
        if line.startswith("error: "):
            self._errors.add(line)
