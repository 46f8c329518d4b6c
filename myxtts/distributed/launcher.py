"""Starts the workers of a job on this machine, shows and keeps what they print, and ends all when one dies.

No TensorFlow: the launcher is a small process beside its workers. Each of them is told the cluster by TF_CONFIG.
"""

import importlib.util
import math
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from myxtts.distributed.cluster import Cluster
from myxtts.distributed.processes import Child, Pipes, Stop, only_gpus, stop_requests, usable_cores, visible_gpus
from myxtts.errors import ConfigError, PlacementError

# A worker that hangs is noticed by its heartbeat after 20 s. With these two the whole job then ends within a minute.
NOTICE_S = 22.0  # for the others to notice by themselves that one has died, and to say so
SAVE_S = 14.0  # to save and end, once they are asked to; then they are killed
POLL_S = 0.1


@dataclass(frozen=True)
class Launch:
    """What is to be started.

    Attributes:
        command: of each worker, as `find_program` gives it.
        workers: addresses of the whole cluster.
        own: indices of the workers on this machine.
        logs: folder for what each prints.
        cores_per_worker: pins each to so many cores of its own; 0 leaves them all of them.
        gpus_per_worker: shows each so many GPUs of its own; None shows all to all.
    """

    command: tuple[str, ...]
    workers: tuple[str, ...]
    own: tuple[int, ...]
    logs: Path
    cores_per_worker: int = 0
    gpus_per_worker: int | None = None


def find_program(words: Sequence[str]) -> tuple[str, ...]:
    """The command of a Python program and its arguments: a file, or `-m` and a module.

    Raises:
        ConfigError: there is no such program.
    """
    words = [word for i, word in enumerate(words) if i or word != "--"]
    if not words:
        raise ConfigError("no program was named. Give it after --, such as -- train_main.py --run first.")
    if words[0] == "-m":
        if len(words) == 1 or importlib.util.find_spec(words[1].partition(".")[0]) is None:
            raise ConfigError(f"-m was to run the module '{' '.join(words[1:2])}', but there is none of that name.")
    elif not Path(words[0]).is_file():
        raise ConfigError(
            f"'{words[0]}' was to be run, but there is no such file under {Path.cwd()}. "
            "Name a Python file, or -m and a module."
        )
    return sys.executable, "-u", *words


def local_workers(count: int) -> tuple[str, ...]:
    """Addresses with ports of this machine that are free."""
    with ExitStack() as opened:
        held = [opened.enter_context(socket.socket()) for _ in range(count)]  # all at once, so that none is given twice
        for one in held:
            one.bind(("127.0.0.1", 0))
        return tuple(f"127.0.0.1:{one.getsockname()[1]}" for one in held)


def launch(job: Launch) -> int:
    """Run the workers to their end; gives the exit code.

    0 when all end well; otherwise that of the worker to blame, 128 and the number where that was a signal; 130 or 143
    when the launcher was stopped, by Ctrl-C or SIGTERM, and the workers with it. A second Ctrl-C kills them.

    Raises:
        PlacementError: there are too few cores or GPUs.
        ConfigError: there can be no folder for the logs.
    """
    cores, gpus = _cores(job), _gpus(job)
    _make_folder(job.logs)
    with ExitStack() as opened:
        stop = opened.enter_context(stop_requests())
        workers: list[Child] = []
        opened.callback(lambda: [worker.kill() for worker in workers])
        for index, own_cores, own_gpus in zip(job.own, cores, gpus, strict=True):
            # After what it already holds: the log of a job that died is needed when it runs again.
            log = opened.enter_context(open(_log_of(job, index), "ab", buffering=0))
            environ = {**own_gpus, "TF_CONFIG": Cluster(job.workers, index).tf_config()}
            workers.append(Child(f"worker {index}", job.command, log, job.workers[index], environ, own_cores))
        failed = _attend(workers, stop)
    if not failed:
        return 0 if stop.signal is None else 128 + stop.signal
    culprit = min(failed, key=_innocence)
    print(_obituary(job, job.own[workers.index(culprit)], culprit), file=sys.stderr)
    return culprit.code if culprit.code > 0 else 128 - culprit.code


def _innocence(worker: Child) -> int:
    """Who was killed or has a defect comes first, then who met a mistake of the user, then who only lost another."""
    if worker.code != 2:
        return 0 if worker.code < 0 else 1
    return 3 if any(line.startswith("error: worker ") for line in worker.last_lines) else 2


def _obituary(job: Launch, index: int, worker: Child) -> str:
    name = Cluster(job.workers, index).name()
    if worker.code == 2:
        return f"error: {name} ended with exit code 2, for the reason above ({_log_of(job, index)})"
    return f"error: {name} {worker.obituary()}"


def _cores(job: Launch) -> list[frozenset[int] | None]:
    """The cores of each worker."""
    each, count = job.cores_per_worker, len(job.own)
    if not each:
        return [None] * count
    found = usable_cores()
    if not found:
        raise PlacementError("--cores-per-worker was given, but this system cannot pin processes. Leave it out.")
    if each * count > len(found):
        raise PlacementError(
            f"{count} workers with {each} cores each were asked for, but this process may use {len(found)} cores. "
            "Give fewer of them by --cores-per-worker or --workers, or leave --cores-per-worker out."
        )
    return [frozenset(found[i * each : (i + 1) * each]) for i in range(count)]


def _gpus(job: Launch) -> list[dict[str, str]]:
    """What each worker is told of the GPUs."""
    each, count = job.gpus_per_worker, len(job.own)
    if each is None:
        return [{}] * count
    found = visible_gpus() if each else []
    if each * count > len(found):
        raise PlacementError(
            f"{count} workers with {each} GPUs each were asked for, but this process sees {len(found)} GPUs. "
            "Give fewer of them by --gpus-per-worker or --workers; --gpus-per-worker 0 trains on the CPU."
        )
    return [only_gpus(found[i * each : (i + 1) * each]) for i in range(count)]


def _make_folder(logs: Path) -> None:
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"--logs {logs} was to be a folder, but a file is there. Name another folder.") from error


def _log_of(job: Launch, index: int) -> Path:
    return job.logs / f"worker-{index}.log"


def _attend(workers: Sequence[Child], stop: Stop) -> list[Child]:
    """Show what the workers print until all have ended; gives those that ended badly by themselves."""
    failed: list[Child] = []
    passed_on, failed_s, asked = 0, math.inf, False
    with Pipes(workers) as pipes:
        screen = _Screen(pipes)
        running = True
        while running:
            screen.show(POLL_S)
            running = not all([worker.has_ended() for worker in workers])
            if stop.count > passed_on:
                passed_on = stop.count
                for worker in workers:
                    worker.kill() if stop.count > 1 else worker.signal(stop.signal)
            if not asked and stop.count < 2:
                failed = [worker for worker in workers if worker.code and not stop.explains(worker.code)]
            now_s = time.monotonic()
            failed_s = min(failed_s, now_s if failed else math.inf)
            if not asked and now_s >= failed_s + NOTICE_S:
                asked = True
                for worker in workers:
                    worker.signal(signal.SIGTERM)
            if now_s >= failed_s + NOTICE_S + SAVE_S:
                for worker in workers:
                    worker.kill()
        screen.show(0.0)
    return failed


class _Screen:
    """What the workers print, line by line, each with the name of its worker."""

    def __init__(self, pipes: Pipes):
        self._pipes = pipes
        self._errors: set[str] = set()

    def show(self, wait_s: float) -> None:
        """Print all that is there; waits so long if there is nothing."""
        for worker, line in self._pipes.lines(wait_s):
            if self._is_news(line):
                print(f"[{worker.name}] {line}", flush=True)

    def _is_news(self, line: str) -> bool:
        """Whether no other worker has said the same; a mistake of the user is found by all of them."""
        is_error = line.startswith("error: ")
        is_news = line not in self._errors
        if is_error:
            self._errors.add(line)
        return is_news
