"""Child processes: start, log, restart and end them; signals to stop; and GPUs. No TensorFlow."""

import ctypes
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from io import FileIO
from itertools import takewhile
from pathlib import Path
from typing import Literal

# Slurm, timeout(1) and wrappers send a signal twice within milliseconds.
REPEAT_S = 0.2
LAST_LINES = 20
# About so much is read of a child at a time: a child that prints without end must not keep its
# reader. A pipe holds less.
READ_BYTES = 1 << 20
POLL_S = 0.05
# After a failure, the other workers notice it and report it themselves, after a missing heartbeat
# at the latest (20 s). Then they get time to save. So all end within a minute.
NOTICE_S = 22.0
SAVE_S = 14.0
# After a stop these are no failure: SIGTERM ended the program, with or without saving.
STOPPED_CODES = (130, 143, -signal.SIGTERM)
# nvidia-smi never returns when the driver hangs.
NVIDIA_SMI_S = 20.0
# From linux/prctl.h.
PR_SET_PDEATHSIG = 1

log = logging.getLogger(__name__)


def stop_signals() -> list[signal.Signals]:
    """Return SIGINT, SIGTERM and, unless nohup ignores it, SIGHUP.

    Returns none in a thread, which may set no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals


class StopSignals:
    """Counts the requests to stop in a scope, which therefore do not end this process.

    Attributes:
        signal: the first signal.
        count: number of requests; REPEAT_S must pass between two of them.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.count = 0
        self._newest_s = -math.inf

    def __enter__(self) -> "StopSignals":
        self._previous = {number: signal.signal(number, self._handle) for number in stop_signals()}
        return self

    def __exit__(self, *_error) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame) -> None:
        # The end of a session sends SIGHUP several times, or after a SIGTERM.
        if number == signal.SIGHUP and self.count:
            return
        now_s = time.monotonic()
        if now_s - self._newest_s >= REPEAT_S:
            self.signal = self.signal or number
            self.count += 1
        self._newest_s = now_s

    @property
    def signal_name(self) -> str:
        return "" if self.signal is None else signal.Signals(self.signal).name

    @property
    def exit_code(self) -> int:
        """128 plus the signal number, as in shells; 0 without a request."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def exit_at_sigterm() -> Iterator[None]:
    """Let a SIGTERM raise SystemExit, so that temporary folders and children go with the scope."""
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@dataclass(frozen=True)
class ProgramSpec:
    """A program to run, pinned to some cores, with its output appended to a log.

    `environ` is added to the environment of this process.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    environ: dict[str, str] = field(default_factory=dict)
    cores: frozenset[int] | None = None
    max_restarts: int = 0


class ChildProcess:
    """A process in a process group of its own: descendants end with it, and no Ctrl-C reaches it.

    Attributes:
        code: exit code, or minus the number of the signal that killed the process; 0 until
            `has_ended` returns true.
        outcome: how it ended for its supervisor: `stopped` on request, `rejected` with exit code 2,
            a user's mistake.
    """

    def __init__(self, program: ProgramSpec):
        self.program = program
        self.code = 0
        self.outcome: Literal["running", "done", "stopped", "rejected", "failed"] = "running"
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._is_reaped = False
        self._log = FileIO(program.log, "a")
        self._log_fails = False
        self._partial = b""
        now = datetime.now().isoformat(" ", "seconds")
        self._add_to_log(f"=== {now} {program.name}: {' '.join(program.command)}\n".encode())
        self._process = subprocess.Popen(
            program.command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **program.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=child_setup(os.getpid(), program.cores),
        )
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self._pipe = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)

    def read_lines(self) -> list[str]:
        """Return the lines printed since the last call, or all that is left after the end."""
        if self._pipe.closed:
            return []
        output = b""
        with suppress(BlockingIOError):
            while len(output) < READ_BYTES and (part := os.read(self._pipe.fileno(), READ_BYTES)):
                output += part
        self._add_to_log(output)
        *complete, partial = (self._partial + output).split(b"\n")
        if self._is_reaped:
            self._pipe.close()
            self._log.close()
            if partial:
                complete.append(partial)
        self._partial = partial[-READ_BYTES:]
        # As on a terminal, text after a carriage return replaces the line.
        lines = [
            line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in complete
        ]
        self.last_lines.extend(lines)
        return lines

    def _add_to_log(self, output: bytes) -> None:
        """Add to the log; if the disk is full or fails, the process goes on without it."""
        try:
            self._log.write(output)
        except OSError as error:
            if not self._log_fails:
                line = "%s cannot be written: %s. Free some disk space; workers and jobs go on."
                log.error(line, self.program.log, error.strerror)
            self._log_fails = True

    def has_ended(self) -> bool:
        """Return whether the process has ended; if so, set `code` and kill its descendants."""
        # Not reaped yet, so no other group can have its number.
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if not self._is_reaped and os.waitid(os.P_PID, self.pid, flags) is not None:
            self.kill()
        return self._is_reaped

    def send_signal(self, number: int) -> None:
        if not self._is_reaped:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and its group, and wait for the exit code."""
        if not self._is_reaped:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self.code = self._process.wait()
            self._is_reaped = True

    def exit_reason(self) -> str:
        if self.code < 0:
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"ended with code {self.code}"

    def failure_report(self) -> str:
        """Return how the process ended, with its last lines."""
        lines = "".join(f"\n  | {line}" for line in self.last_lines)
        return f"{self.exit_reason()}; its last lines (all are in {self.program.log}):{lines}"


def child_setup(parent: int, cores: frozenset[int] | None = None) -> Callable[[], None]:
    """Return a function for a child: die with the parent, and pin to cores."""
    # Loaded here: a child must not load libraries between fork and exec.
    prctl = ctypes.CDLL(None).prctl

    def setup() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent was killed before the call.
        if os.getppid() != parent:
            os._exit(1)
        if cores is not None:
            os.sched_setaffinity(0, cores)

    return setup


# One thread does everything: it polls all processes every POLL_S. In each round it passes on the
# lines that they printed, restarts those that failed, forwards requests to stop, and ends all after
# a failure: by SIGTERM after NOTICE_S, and by SIGKILL after SAVE_S more.
class Supervisor:
    """Runs programs side by side. Subclasses override the callbacks, which do nothing.

        ended = Supervisor(stop, end_together=True).run(programs)

    At the first request to stop the programs get SIGTERM, so that they can save; the second kills
    them. With `end_together` all programs end once one has failed or was rejected.
    """

    def __init__(self, stop: StopSignals, end_together: bool):
        self._stop = stop
        self._end_together = end_together
        self._running: dict[ChildProcess, int] = {}
        self._handled_requests = 0
        self._first_failure_s = math.inf
        self._is_ending = False

    def run(self, programs: Sequence[ProgramSpec]) -> list[ChildProcess]:
        """Run programs until all have ended; return the processes in the order of their ends.

        None is started after a request to stop.
        """
        ended: list[ChildProcess] = []
        try:
            for program in programs:
                if not self._stop.count:
                    self._start(program, restarts=0)
            while self._running:
                for process in list(self._running):
                    has_ended = process.has_ended()
                    for line in process.read_lines():
                        self.on_line(process, line)
                    if has_ended and not self._restart(process):
                        self.on_exit(process)
                        ended.append(process)
                self._forward_stop()
                self._end_after_failure()
                self.on_poll()
                time.sleep(POLL_S)
        finally:
            self._kill_all()
        return ended

    def on_start(self, process: ChildProcess, restarts: int) -> None:
        """A program was started, for the first time if `restarts` is 0."""

    def on_line(self, process: ChildProcess, line: str) -> None:
        """A program has printed a line."""

    def on_restart(self, process: ChildProcess, restarts: int) -> None:
        """A program has failed and is about to be restarted."""

    def on_exit(self, process: ChildProcess) -> None:
        """A program has ended and is not restarted."""

    def on_stop(self, stop: StopSignals) -> None:
        """A request to stop has arrived. The second one kills all programs."""

    def on_poll(self) -> None:
        """About POLL_S seconds have passed."""

    def _start(self, program: ProgramSpec, restarts: int) -> None:
        process = ChildProcess(program)
        self._running[process] = restarts
        self.on_start(process, restarts)

    def _restart(self, process: ChildProcess) -> bool:
        """Set the outcome of a process that has ended; return whether its program was restarted."""
        restarts = self._running.pop(process) + 1
        stops = self._stop.count
        process.outcome = "failed"
        if process.code == 0:
            process.outcome = "done"
        elif self._is_ending or stops > 1 or (stops and process.code in STOPPED_CODES):
            process.outcome = "stopped"
        elif process.code == 2:
            process.outcome = "rejected"
        if process.outcome == "failed" and restarts <= process.program.max_restarts and not stops:
            self.on_restart(process, restarts)
            self._start(process.program, restarts)
            return True
        if process.outcome in ("failed", "rejected"):
            self._first_failure_s = min(self._first_failure_s, time.monotonic())
        return False

    def _forward_stop(self) -> None:
        if self._stop.count == self._handled_requests:
            return
        self._handled_requests = self._stop.count
        self.on_stop(self._stop)
        if self._stop.count > 1:
            self._kill_all()
        else:
            self._terminate_all()

    def _end_after_failure(self) -> None:
        waited_s = time.monotonic() - self._first_failure_s
        if not self._end_together or waited_s < NOTICE_S:
            return
        if not self._is_ending:
            self._is_ending = True
            self._terminate_all()
        if waited_s >= NOTICE_S + SAVE_S:
            self._kill_all()

    def _terminate_all(self) -> None:
        for process in self._running:
            process.send_signal(signal.SIGTERM)

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
        output, _ = process.communicate(timeout=timeout_s)
    except OSError:
        return None
    # One that hangs in a driver cannot be killed, so nobody waits for its end.
    except subprocess.TimeoutExpired:
        process.kill()
        return None
    return output if process.returncode == 0 else None
