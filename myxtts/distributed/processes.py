"""Child processes: start, log, restart and end them; and the GPUs that they get. No TensorFlow.

The launcher of workers and the launcher of independent jobs share the supervisor. They differ in
their `SupervisorEvents`.
"""

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
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from io import FileIO
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from myxtts.distributed.signals import StopSignals
from myxtts.files import FULL

LAST_LINES = 20
# A reader takes at most 1 MiB of a child at a time: one that prints without end must not keep it.
READ_BYTES = 1 << 16
MAX_READS = 16
POLL_S = 0.1
# nvidia-smi never returns when the driver hangs.
NVIDIA_SMI_S = 20.0
# From linux/prctl.h.
PR_SET_PDEATHSIG = 1

Outcome = Literal["done", "stopped", "rejected", "failed"]

log = logging.getLogger(__name__)


class ChildProcess:
    """A process in a process group of its own: descendants end with it, and no Ctrl-C reaches it.

    Args:
        command: program and arguments.
        log: receives the output, after a line with the time, the title and the command.
        environ: added to the parent's environment.
        cores: cores to pin the process to.

    Attributes:
        code: exit code, or minus the number of the signal that killed the process; None until
            `has_ended` returns true.
        last_lines: the last lines of its output.
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
        self._log = log
        self._log_fails = False
        self._partial = b""
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
        output = self._partial + received
        if self._partial and not received:
            output += b"\n"
        *complete, partial = output.split(b"\n")
        # As on a terminal, text after a carriage return replaces the line, so a progress bar takes
        # no memory. One at the end may be that of "\r\n".
        end = b"\r" if partial.endswith(b"\r") else b""
        self._partial = _after_return(partial)[-READ_BYTES:] + end
        lines = [_after_return(line).decode(errors="replace") for line in complete]
        self.last_lines.extend(lines)
        return lines, bool(received)

    def _add_to_log(self, output: bytes) -> None:
        """Add to the log; if the disk is full or fails, the process goes on without it."""
        try:
            self._log.write(output)
        except OSError as error:
            if not self._log_fails:
                self._log_fails = True
                remedy = "Free some disk space; the" if error.errno in FULL else "The"
                log.error(
                    "%s cannot be written: %s. %s workers and jobs go on.",
                    self._log.name,
                    error.strerror,
                    remedy,
                )

    def has_ended(self) -> bool:
        """Return whether the process has ended; if so, set `code` and kill its descendants."""
        if self.code is None:
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            # Not reaped yet, so no other group can have its number.
            if ended is not None:
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
        """Return the output of a process with exit code 2 from `error: ` on, or all of it."""
        lines = list(self.last_lines)
        first = next((i for i, line in enumerate(lines) if line.startswith("error: ")), 0)
        return "\n".join(line.removeprefix("error: ") for line in lines[first:])


def _after_return(line: bytes) -> bytes:
    """Return what a terminal shows of a line: the text after the last carriage return."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def child_setup(parent: int, cores: frozenset[int] | None = None) -> Callable[[], None]:
    """Return a function for a child: die with the parent (Linux only), and pin to cores."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def setup() -> None:
        if prctl is not None:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            # The parent was killed before the call.
            if os.getppid() != parent:
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
        """Yield the lines that are available; wait up to `wait_s` if there are none."""
        if not self._selector.get_map():
            time.sleep(wait_s)
        for _ in range(MAX_READS):
            ready = self._selector.select(wait_s)
            if not ready:
                return
            for key, _ in ready:
                lines, has_more = key.data.read_lines()
                yield from ((key.data, line) for line in lines)
                if not has_more:
                    self._selector.unregister(key.fileobj)
                    key.data.pipe.close()
            wait_s = 0.0


@dataclass(frozen=True)
class ProgramSpec:
    """A program to run.

    Attributes:
        name: for messages.
        log: file that the output is appended to.
        title: of a start, in the log; the name by default.
        environ: added to the environment of this process.
        cores: cores to pin the program to.
        max_restarts: how often the program is restarted after a failure.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    title: str = ""
    environ: dict[str, str] = field(default_factory=dict)
    cores: frozenset[int] | None = None
    max_restarts: int = 0


class Exit(NamedTuple):
    """How a program ended: `stopped` on request, `rejected` with exit code 2, a user's mistake."""

    program: ProgramSpec
    process: ChildProcess
    outcome: Outcome

    @property
    def code(self) -> int:
        return self.process.code or 0


class SupervisorEvents:
    """Callbacks of a supervisor; each does nothing by default."""

    def on_start(self, program: ProgramSpec, pid: int, restarts: int) -> None:
        """A program was started, for the first time if `restarts` is 0."""

    def on_line(self, program: ProgramSpec, line: str) -> None:
        """A program has printed a line."""

    def on_restart(self, program: ProgramSpec, process: ChildProcess, restarts: int) -> None:
        """A program has failed and is about to be restarted."""

    def on_exit(self, exit: Exit) -> None:
        """A program has ended and is not restarted."""

    def on_stop(self, stop: StopSignals) -> None:
        """A request to stop has arrived. The second one kills all programs."""

    def on_poll(self) -> None:
        """Called every POLL_S seconds at least."""


class GracePeriods(NamedTuple):
    """How long the other programs may run on after one has failed.

    Attributes:
        notice_s: until they receive SIGTERM.
        save_s: from then until they are killed.
    """

    notice_s: float
    save_s: float


class Supervisor:
    """Runs programs side by side.

    Args:
        stop: requests to stop. The first is passed on, so that the programs can save; the second
            kills them.
        stop_signal: signal that passes the first request on; None sends the signal that this
            process received, or SIGTERM for a SIGHUP, at which a program would end without saving.
        grace: ends all programs once one has failed or was rejected; None lets the others run.
    """

    def __init__(
        self,
        stop: StopSignals,
        events: SupervisorEvents,
        stop_signal: int | None = None,
        grace: GracePeriods | None = None,
    ):
        self._stop = stop
        self._events = events
        self._stop_signal = stop_signal
        self._grace = grace
        self._running: dict[ChildProcess, ProgramSpec] = {}
        self._restarts: dict[str, int] = {}
        self._handled_requests = 0
        self._first_failure_s: float | None = None
        self._is_ending = False

    def run(self, programs: Sequence[ProgramSpec]) -> list[Exit]:
        """Run programs until all have ended; return how, in the order of their ends.

        None is started after a request to stop.
        """
        exits: list[Exit] = []
        with ExitStack() as resources:
            self._resources = resources
            self._output = resources.enter_context(OutputReader())
            resources.callback(self._kill_all)
            for program in programs:
                if not self._stop.count:
                    self._start(program, restarts=0)
            while self._running:
                ended = [process for process in self._running if process.has_ended()]
                for process, line in self._output.lines(0.0 if ended else POLL_S):
                    # A descendant in another group may outlive the program and still print.
                    if process in self._running:
                        self._events.on_line(self._running[process], line)
                for process in ended:
                    self._reap(process, exits)
                self._forward_stop()
                self._end_after_failure()
                self._events.on_poll()
        return exits

    def _start(self, program: ProgramSpec, restarts: int) -> None:
        log = self._resources.enter_context(FileIO(program.log, "a"))
        process = ChildProcess(
            program.command, log, program.title or program.name, program.environ, program.cores
        )
        self._output.add(process)
        self._running[process] = program
        self._restarts[program.name] = restarts
        self._events.on_start(program, process.pid, restarts)

    def _reap(self, process: ChildProcess, exits: list[Exit]) -> None:
        """Restart the program of a process that has ended, or add its exit."""
        program = self._running.pop(process)
        exit = Exit(program, process, self._outcome(process.code or 0))
        restarts = self._restarts[program.name]
        if exit.outcome == "failed" and restarts < program.max_restarts and not self._stop.count:
            self._events.on_restart(program, process, restarts + 1)
            self._start(program, restarts + 1)
            return
        if exit.outcome in ("failed", "rejected") and self._first_failure_s is None:
            self._first_failure_s = time.monotonic()
        self._events.on_exit(exit)
        exits.append(exit)

    def _outcome(self, code: int) -> Outcome:
        if code == 0:
            return "done"
        if self._is_ending or self._stop.count > 1 or self._stop.caused(code):
            return "stopped"
        return "rejected" if code == 2 else "failed"

    def _forward_stop(self) -> None:
        if self._stop.count == self._handled_requests:
            return
        self._handled_requests = self._stop.count
        self._events.on_stop(self._stop)
        if self._stop.count > 1:
            self._kill_all()
            return
        number = self._stop_signal or self._stop.signal
        if number is None or number == signal.SIGHUP:
            number = signal.SIGTERM
        self._signal_all(number)

    def _end_after_failure(self) -> None:
        if self._grace is None or self._first_failure_s is None:
            return
        waited_s = time.monotonic() - self._first_failure_s
        if not self._is_ending and waited_s >= self._grace.notice_s:
            self._is_ending = True
            self._signal_all(signal.SIGTERM)
        if waited_s >= self._grace.notice_s + self._grace.save_s:
            self._kill_all()

    def _signal_all(self, number: int) -> None:
        for process in self._running:
            process.send_signal(number)

    def _kill_all(self) -> None:
        for process in self._running:
            process.kill()


def visible_gpus() -> list[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES lists, or else all of the driver."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return list(takewhile(lambda gpu: gpu not in ("", "-1"), map(str.strip, listed.split(","))))
    output = output_of(("nvidia-smi", "--list-gpus"), NVIDIA_SMI_S) or ""
    return [str(gpu) for gpu in range(sum(line.startswith("GPU ") for line in output.splitlines()))]


def gpu_environ(gpus: Sequence[str]) -> dict[str, str]:
    """Return the variable that shows a child only these GPUs, named as by `visible_gpus`."""
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus) or "-1"}


def output_of(command: Sequence[str], timeout_s: float) -> str | None:
    """Return what a program prints, or None if it is missing, fails or takes too long."""
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return None
    try:
        output, _ = process.communicate(timeout=timeout_s)
    # One that hangs in a driver cannot be killed, so nobody waits for its end.
    except subprocess.TimeoutExpired:
        process.kill()
        return None
    return output if process.returncode == 0 else None
