"""Child processes, and the GPUs that they can be given. No TensorFlow."""

import ctypes
import logging
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import takewhile
from typing import BinaryIO

from myxtts.files import FULL

LAST_LINES = 20
READ_BYTES = 1 << 16
MAX_READS = 16
NVIDIA_SMI_S = 20.0  # nvidia-smi never returns when the driver hangs
PR_SET_PDEATHSIG = 1  # linux/prctl.h

log = logging.getLogger(__name__)


class ChildProcess:
    """A process in a process group of its own: its descendants end with it, and Ctrl-C reaches it
    through its parent.

    Args:
        command: program and arguments.
        log: receives the output, after a line with the time, the title and the command.
        title: of this start, in the log.
        environ: added to the parent's environment.
        cores: cores to pin the process to.

    Attributes:
        code: exit code, or minus the number of the signal that killed the process; None until
            `has_ended` returns true.
        last_lines: the last lines of its output.
        pid: process ID.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: BinaryIO,
        title: str,
        environ: Mapping[str, str],
        cores: frozenset[int] | None = None,
    ):
        self.code: int | None = None
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._log, self._partial, self._log_fails = log, b"", False
        now = datetime.now().isoformat(" ", "seconds")
        self._add_to_log(f"=== {now} {title}: {' '.join(command)}\n".encode())
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=child_setup(os.getpid(), cores),
        )
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.pipe = self._process.stdout
        os.set_blocking(self.pipe.fileno(), False)

    def read_lines(self) -> tuple[list[str], bool]:
        """Return the lines printed since the last call, and whether more can come."""
        try:
            received = os.read(self.pipe.fileno(), READ_BYTES)
        except BlockingIOError:
            return [], True
        self._add_to_log(received)
        *complete, self._partial = (
            self._partial + (received or b"\n" * bool(self._partial))
        ).split(b"\n")
        # As on a terminal, text after a carriage return replaces the line. One at the end may be
        # that of "\r\n".
        end = self._partial[-1:] if self._partial.endswith(b"\r") else b""
        self._partial = self._partial.removesuffix(end).rpartition(b"\r")[2][-READ_BYTES:] + end
        lines = [
            line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in complete
        ]
        self.last_lines.extend(lines)
        return lines, bool(received)

    def _add_to_log(self, output: bytes) -> None:
        """Add to the log; if the disk is full or fails, the process goes on without it."""
        try:
            self._log.write(output)
        except OSError as error:
            if not self._log_fails:
                name, self._log_fails = self._log.name, True
                remedy = "Free some disk space; the" if error.errno in FULL else "The"
                log.error(
                    "%s cannot be written: %s. %s workers and jobs go on.",
                    name,
                    error.strerror,
                    remedy,
                )

    def has_ended(self) -> bool:
        """Return whether the process has ended; if so, set `code` and kill its descendants."""
        if self.code is None:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:  # not reaped yet, so no other group can have its number
                self.kill()
        return self.code is not None

    def send_signal(self, number: int) -> None:
        if not self.has_ended():
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process and its group, and wait for the exit code."""
        if self.code is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self.code = self._process.wait()

    def exit_reason(self) -> str:
        code = self.code or 0
        return (
            f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        )

    def failure_report(self) -> str:
        """Return how the process ended, with its last lines."""
        lines = "".join(f"\n  | {line}" for line in self.last_lines)
        return (
            f"{self.exit_reason()}; its last lines (all are in {self._log.name}):{lines or ' none'}"
        )

    def error_message(self) -> str:
        """Return the message of a process with exit code 2: its output from `error: ` on, or all of
        it.
        """
        lines = list(self.last_lines)
        first = next((i for i, line in enumerate(lines) if line.startswith("error: ")), 0)
        return "\n".join(line.removeprefix("error: ") for line in lines[first:])


def child_setup(parent: int, cores: frozenset[int] | None = None) -> Callable[[], None]:
    """Return a function that a child runs before its program: die with the parent (Linux only), and
    pin to cores.
    """
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def setup() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # the parent was killed before the call
                os._exit(1)
        if cores is not None:
            os.sched_setaffinity(0, cores)

    return setup


class OutputReader:
    """Reads the output of several children line by line; a context manager."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> "OutputReader":
        return self

    def __exit__(self, *_error) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.pipe.close()
        self._selector.close()

    def add(self, child: ChildProcess) -> None:
        self._selector.register(child.pipe, selectors.EVENT_READ, child)

    def lines(self, wait_s: float) -> Iterator[tuple[ChildProcess, str]]:
        """Yield the lines that are available; wait up to `wait_s` if there are none.

        One call reads at most 1 MiB of each child: one that prints without end must not keep its
        caller for ever.
        """
        if not self._selector.get_map():
            time.sleep(wait_s)
        for _ in range(MAX_READS):
            if not (ready := self._selector.select(wait_s)):
                return
            for key, _ in ready:
                lines, has_more = key.data.read_lines()
                yield from ((key.data, line) for line in lines)
                if not has_more:
                    self._selector.unregister(key.fileobj)
                    key.data.pipe.close()
            wait_s = 0.0


def visible_gpus() -> list[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES lists, as numbers or names; without it, all GPUs of
    the driver.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return list(takewhile(lambda gpu: gpu not in ("", "-1"), map(str.strip, listed.split(","))))
    output = output_of(("nvidia-smi", "--list-gpus"), NVIDIA_SMI_S) or ""
    return [str(gpu) for gpu in range(sum(line.startswith("GPU ") for line in output.splitlines()))]


def output_of(command: Sequence[str], timeout_s: float) -> str | None:
    """Return what a program prints, or None if it is missing, fails or takes too long.

    One that hangs in a driver cannot be killed, so it is not waited for.
    """
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return None
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return None
    return output if process.returncode == 0 else None


def gpu_environ(gpus: Sequence[str]) -> dict[str, str]:
    """Return the environment variable that shows a child only these GPUs, named as by
    `visible_gpus`.
    """
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus) or "-1"}
