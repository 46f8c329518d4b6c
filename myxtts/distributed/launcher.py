"""Launches workers on this machine, and ends all of them when one fails. No TensorFlow."""

import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from myxtts.base import processes
from myxtts.base.console import detach_stdout
from myxtts.base.errors import PeerLost
from myxtts.base.files import make_folder
from myxtts.base.machine import usable_cores
from myxtts.base.processes import ChildProcess, ProgramSpec, StopSignals
from myxtts.devicefeed.errors import PlacementError, UserError
from myxtts.distributed.cluster import Cluster


def local_workers(count: int) -> tuple[str, ...]:
    """Return addresses on this machine with free ports."""
    # All sockets are open at once, so that no port is returned twice.
    with ExitStack() as resources:
        sockets = [resources.enter_context(socket.socket()) for _ in range(count)]
        for unused in sockets:
            unused.bind(("127.0.0.1", 0))
        return tuple(f"127.0.0.1:{unused.getsockname()[1]}" for unused in sockets)


# Cores and GPUs are divided first, so that an impossible request starts nothing. Each worker gets
# its cluster in TF_CONFIG, and its output is printed with its name. When one ends with an error,
# all end; the one with the most severe exit code is named as the cause.
def launch(
    program: Sequence[str],
    workers: tuple[str, ...],
    local: Sequence[int],
    logs: Path,
    cores_per_worker: int = 0,
    gpus_per_worker: int | None = None,
) -> int:
    """Run the workers until all have ended; return the exit code.

    The first failure decides: its exit code, or 128 plus the number of the signal that killed it;
    130, 143 or 129 if Ctrl-C, SIGTERM or a hangup stopped them. A second Ctrl-C kills them. Raises
    UserError if there are too few cores or GPUs, or the folder for the logs cannot be made.

    Args:
        program: a Python file, or `-m` and a module, with arguments; TF_CONFIG has its cluster.
        workers, local: addresses of the whole cluster, and indices of those to start here.
        cores_per_worker, gpus_per_worker: of its own; 0 pins to no cores, None shows all GPUs.
    """
    cores = _divide(usable_cores(), len(local), cores_per_worker, "cores")
    existing_gpus = processes.visible_gpus() if gpus_per_worker else []
    gpus = _divide(existing_gpus, len(local), gpus_per_worker or 0, "gpus")
    programs = []
    for place, index in enumerate(local):
        cluster = Cluster(workers, index)
        environ = {"TF_CONFIG": cluster.tf_config()}
        if gpus_per_worker is not None:
            environ |= processes.gpu_environ(gpus[place])
        command = (sys.executable, "-u", *program)
        log = logs / f"worker-{index}.log"
        pinned = frozenset(cores[place]) or None
        programs.append(ProgramSpec(cluster.name(), command, log, environ, pinned))
    make_folder(logs, "--logs")
    with StopSignals() as stop:
        ended = _PrefixedOutput(stop).run(programs)
    failures = [process for process in ended if process.outcome in ("failed", "rejected")]
    if not failures:
        return stop.exit_code
    # The most severe one is the cause of the others.
    first = min(failures, key=lambda process: (_severity(process), programs.index(process.program)))
    report = first.failure_report()
    if first.code in (UserError.exit_code, PeerLost.exit_code):
        message = f"its message is above and in {first.program.log}"
        report = f"ended with exit code {first.code}; {message}"
    print(f"error: {first.program.name} {report}", file=sys.stderr)
    if first.code > 0:
        return first.code
    return 128 - first.code


def _severity(process: ChildProcess) -> int:
    """Return 0 for a killed worker, 1 for a defect, 2 for a user's error, 3 for a lost worker.

    The loss of another worker is the consequence of one of the former.
    """
    by_code = {UserError.exit_code: 2, PeerLost.exit_code: 3}
    if process.code < 0:
        return 0
    return by_code.get(process.code, 1)


def _divide(items: Sequence, count: int, size: int, kind: str) -> list[Sequence]:
    """Return `size` cores or GPUs of its own for each of `count` workers."""
    if size * count > len(items):
        raise PlacementError(
            f"{count} workers with {size} {kind} each were requested, but this process may use"
            f" {len(items)} {kind}. Lower --{kind}-per-worker or --workers."
        )
    return [items[i * size : (i + 1) * size] for i in range(count)]


class _PrefixedOutput(processes.Supervisor):
    """Prints each line with the name of its worker, and an error that all report only once."""

    def __init__(self, stop: StopSignals) -> None:
        super().__init__(stop, end_together=True)
        self._errors: set[str] = set()

    def on_line(self, process: ChildProcess, line: str) -> None:
        if line not in self._errors:
            # The address in the name would only make each line longer.
            name = process.program.name.partition(" (")[0]
            try:
                print(f"[{name}] {line}", flush=True)
            # A closed terminal must not keep the workers from saving.
            except OSError as error:
                detach_stdout(error, "The workers go on")
        if line.startswith("error: "):
            self._errors.add(line)
