"""Child processes: each in a group of its own, with a log; and what the parent itself is asked. No TensorFlow."""

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

LAST_LINES = 20
NVIDIA_SMI_S = 20.0  # with a driver that hangs, it never returns
PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Child:
    """A process in a group of its own, so that what it starts ends with it, and Ctrl-C reaches it by its parent.

    Args:
        name: for messages.
        command: what it runs.
        log: gets what it prints, behind a line with the time and `title`.
        title: of this start in the log.
        environ: what it sees beside and instead of the parent's environment.
        cores: pins it to these.

    Attributes:
        code: exit code, or minus the number of the signal that killed it; None until `has_ended` has seen the end.
        last_lines: that it printed.
        pid: its number.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: BinaryIO,
        title: str,
        environ: Mapping[str, str],
        cores: frozenset[int] | None = None,
    ):
        self.name = name
        self.code: int | None = None
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._log, self._partial = log, b""
        log.write(f"=== {datetime.now().isoformat(' ', 'seconds')} {title}: {' '.join(command)}\n".encode())
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_before_start(os.getpid(), cores),
        )
        self.pid = self._process.pid
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
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
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
                os.killpg(self.pid, signal.SIGKILL)
            self.code = self._process.wait()

    def how_it_ended(self) -> str:
        return f"was killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"ended with code {self.code}"

    def obituary(self) -> str:
        """How it ended, with its last lines."""
        lines = "".join(f"\n  | {line}" for line in self.last_lines)
        return f"{self.how_it_ended()}; its last lines ({self._log.name} has all):{lines or ' none'}"


def _before_start(parent: int, cores: frozenset[int] | None) -> Callable[[], None]:
    """What a child does before its program: die with its parent, even one that is killed; take its cores.

    Only Linux can do the first.
    """
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it was killed before
                os._exit(1)
        if cores is not None:
            os.sched_setaffinity(0, cores)

    return prepare


class Pipes:
    """What several children print, line by line; a context manager."""

    def __init__(self, children: Sequence[Child] = ()):
        self._selector = selectors.DefaultSelector()
        for child in children:
            self.add(child)

    def __enter__(self) -> "Pipes":
        return self

    def __exit__(self, *_error) -> None:
        for key in self._selector.get_map().values():
            key.fileobj.close()
        self._selector.close()

    def add(self, child: Child) -> None:
        self._selector.register(child.pipe, selectors.EVENT_READ, child)

    def lines(self, wait_s: float) -> Iterator[tuple[Child, str]]:
        """All that is there, by whom; waits so long if there is nothing."""
        if not self._selector.get_map():
            time.sleep(wait_s)
        while ready := self._selector.select(wait_s):
            for key, _ in ready:
                lines, has_more = key.data.read()
                yield from ((key.data, line) for line in lines)
                if not has_more:
                    self._selector.unregister(key.fileobj)
                    key.fileobj.close()
            wait_s = 0.0


class Stop:
    """What this process was asked: the signal to pass on to its children, and how often."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.count = 0

    def explains(self, code: int) -> bool:
        """Whether a child ended with this code as it was told to: after saving, or before it could."""
        return self.signal is not None and (code in (130, 143) or -code in (self.signal, signal.SIGTERM))


@contextmanager
def stop_requests() -> Iterator[Stop]:
    """In its scope Ctrl-C, SIGTERM and a terminal that closes are only counted."""
    stop = Stop()

    def ask(number, _frame) -> None:
        stop.signal = stop.signal or number
        stop.count += 1

    before = {one: signal.signal(one, ask) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield stop
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def usable_cores() -> list[int]:
    """Cores that this process may use; none where the system cannot pin processes."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []


def visible_gpus() -> list[str]:
    """Numbers or names of the GPUs, as CUDA_VISIBLE_DEVICES lists them; all that the driver has without it."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return list(takewhile(lambda gpu: gpu not in ("", "-1"), map(str.strip, listed.split(","))))
    try:
        told = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=NVIDIA_SMI_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [str(gpu) for gpu in range(sum(line.startswith("GPU ") for line in told.stdout.splitlines()))]


def only_gpus(gpus: Sequence[str]) -> dict[str, str]:
    """What a child is told so that it sees these GPUs, as `visible_gpus` names them, and no others."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus) or "-1"}


def started_ticks(pid: int) -> int | None:
    """When a process was started, in clock ticks since this machine was; None where none of this number runs.

    With the number it names a process for good: the number alone is given to another one some day. Linux only.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else int(fields[19])  # Z: it has ended, and nobody has asked for its code yet
