"""Starts the workers of a job on this machine, shows and keeps what they print, and ends all when one dies.

No TensorFlow: the launcher is a small process beside its workers. Each of them is told the cluster by TF_CONFIG.
"""

import ctypes
import importlib.util
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from myxtts.errors import ConfigError, PlacementError
from myxtts.placement.cluster import Cluster

NOTICE_S = (
    25.0  # for the others to notice by themselves that one has died, by its heartbeat at the latest, and to say so
)
SAVE_S = 15.0  # to save and end, once they are asked to; then they are killed
POLL_S = 0.1
LAST_LINES = 20
NVIDIA_SMI_S = 20.0  # with a driver that hangs, it never returns
PR_SET_PDEATHSIG = 1  # linux/prctl.h


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
        stop = opened.enter_context(_stop_requests())
        workers: list[_Worker] = []
        opened.callback(lambda: [worker.kill() for worker in workers])
        for index, own_cores, own_gpus in zip(job.own, cores, gpus, strict=True):
            # After what it already holds: the log of a job that died is needed when it runs again.
            log = opened.enter_context(open(_log_of(job, index), "ab", buffering=0))
            workers.append(_Worker(index, job, own_cores, own_gpus, log))
        failed = _attend(workers, stop)
    if not failed:
        return 0 if stop.signal is None else 128 + stop.signal
    culprit = min(failed, key=_innocence)
    print(_obituary(job, culprit), file=sys.stderr)
    return culprit.code if culprit.code > 0 else 128 - culprit.code


def _innocence(worker: "_Worker") -> int:
    """Who was killed or has a defect comes first, then who met a mistake of the user, then who only lost another."""
    if worker.code != 2:
        return 0 if worker.code < 0 else 1
    return 3 if any(line.startswith("error: worker ") for line in worker.last_lines) else 2


def _obituary(job: Launch, worker: "_Worker") -> str:
    name, log = Cluster(job.workers, worker.index).name(), _log_of(job, worker.index)
    if worker.code == 2:
        return f"error: {name} ended with exit code 2, for the reason above ({log})"
    how = f"was killed by {signal.Signals(-worker.code).name}" if worker.code < 0 else f"ended with code {worker.code}"
    lines = "".join(f"\n  | {line}" for line in worker.last_lines)
    return f"error: {name} {how}; its last lines ({log} has all):{lines or ' none'}"


def _cores(job: Launch) -> list[frozenset[int] | None]:
    """The cores of each worker."""
    each, count = job.cores_per_worker, len(job.own)
    if not each:
        return [None] * count
    if not hasattr(os, "sched_setaffinity"):
        raise PlacementError("--cores-per-worker was given, but this system cannot pin processes. Leave it out.")
    found = sorted(os.sched_getaffinity(0))
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
    found = _visible_gpus() if each else []
    if each * count > len(found):
        raise PlacementError(
            f"{count} workers with {each} GPUs each were asked for, but this process sees {len(found)} GPUs. "
            "Give fewer of them by --gpus-per-worker or --workers; --gpus-per-worker 0 trains on the CPU."
        )
    own = [found[i * each : (i + 1) * each] or ["-1"] for i in range(count)]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus)} for gpus in own]


def _visible_gpus() -> list[str]:
    """Numbers or names of the GPUs, as CUDA_VISIBLE_DEVICES lists them; all that the driver has without it."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return list(takewhile(lambda gpu: gpu not in ("", "-1"), map(str.strip, listed.split(","))))
    try:
        told = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=NVIDIA_SMI_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(gpu) for gpu in range(sum(line.startswith("GPU ") for line in told.stdout.splitlines()))]


def _make_folder(logs: Path) -> None:
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ConfigError(f"--logs {logs} was to be a folder, but a file is there. Name another folder.") from error


def _log_of(job: Launch, index: int) -> Path:
    return job.logs / f"worker-{index}.log"


class _Stop:
    """What the launcher itself was asked: the signal to pass on, and how often."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.count = 0


@contextmanager
def _stop_requests() -> Iterator[_Stop]:
    stop = _Stop()

    def ask(number, _frame) -> None:
        stop.signal = stop.signal or number
        stop.count += 1

    before = {one: signal.signal(one, ask) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class _Worker:
    """A process in a group of its own, so that what it starts ends with it, and Ctrl-C reaches it by the launcher."""

    def __init__(self, index: int, job: Launch, cores: frozenset[int] | None, gpus: dict[str, str], log: BinaryIO):
        self.index = index
        self.code: int | None = None
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._log, self._partial = log, b""
        began = datetime.now().isoformat(" ", "seconds")
        log.write(f"=== {began} {job.workers[index]}: {' '.join(job.command)}\n".encode())
        self._process = subprocess.Popen(
            job.command,
            env={**os.environ, **gpus, "TF_CONFIG": Cluster(job.workers, index).tf_config(), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_before_start(os.getpid(), cores),
        )
        self.pipe = self._process.stdout
        os.set_blocking(self.pipe.fileno(), False)

    def read(self) -> tuple[list[str], bool]:
        """Lines that it printed since the last call, which are kept; and whether more can come."""
        try:
            received = os.read(self.pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return [], True
        self._log.write(received)
        *whole, self._partial = (self._partial + (received or b"\n" * bool(self._partial))).split(b"\n")
        # As a terminal would show it: after a return, a line is written over.
        lines = [line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in whole]
        self.last_lines.extend(lines)
        return lines, bool(received)

    def has_ended(self) -> bool:
        """Whether it has; then its code is known, and what it started is ended, too."""
        if self.code is None:
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:  # not reaped yet, so that its number is no other group's
                self.kill()
        return self.code is not None

    def signal(self, number: int) -> None:
        if not self.has_ended():
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it and its group, however it stands."""
        if self.code is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self.code = self._process.wait()


def _before_start(launcher: int, cores: frozenset[int] | None):
    """What a worker's process does before its program: die with the launcher, even one that is killed; take its cores.

    Only Linux can do the first.
    """
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:  # it was killed before
                os._exit(1)
        if cores is not None:
            os.sched_setaffinity(0, cores)

    return prepare


def _attend(workers: Sequence[_Worker], stop: _Stop) -> list[_Worker]:
    """Show what the workers print until all have ended; gives those that ended badly by themselves."""
    failed: list[_Worker] = []
    passed_on, failed_s, asked = 0, math.inf, False
    with _Screen(workers) as screen:
        running = True
        while running:
            screen.show(POLL_S)
            running = not all([worker.has_ended() for worker in workers])
            if stop.count > passed_on:
                passed_on = stop.count
                for worker in workers:
                    worker.kill() if stop.count > 1 else worker.signal(stop.signal)
            if not asked and stop.count < 2:
                failed = [worker for worker in workers if worker.code and not _was_stopped(worker.code, stop)]
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


def _was_stopped(code: int, stop: _Stop) -> bool:
    """Whether a worker ended as it was told to: after saving, or before it could."""
    return stop.signal is not None and (code in (130, 143) or code == -stop.signal)


class _Screen:
    """What the workers print, line by line, each with the name of its worker."""

    def __init__(self, workers: Sequence[_Worker]):
        self._selector = selectors.DefaultSelector()
        for worker in workers:
            self._selector.register(worker.pipe, selectors.EVENT_READ, worker)
        self._errors: set[str] = set()

    def __enter__(self) -> "_Screen":
        return self

    def __exit__(self, *_error) -> None:
        self._selector.close()

    def show(self, wait_s: float) -> None:
        """Print all that is there; waits so long if there is nothing."""
        if not self._selector.get_map():
            time.sleep(wait_s)
        while ready := self._selector.select(wait_s):
            for key, _ in ready:
                lines, has_more = key.data.read()
                for line in filter(self._is_news, lines):
                    print(f"[worker {key.data.index}] {line}", flush=True)
                if not has_more:
                    self._selector.unregister(key.fileobj)
            wait_s = 0.0

    def _is_news(self, line: str) -> bool:
        """Whether no other worker has said the same; a mistake of the user is found by all of them."""
        is_error = line.startswith("error: ")
        is_news = line not in self._errors
        if is_error:
            self._errors.add(line)
        return is_news
