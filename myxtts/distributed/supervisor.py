"""Supervises child processes: starts, logs, restarts and ends them. No TensorFlow.

The launcher of workers and the launcher of independent jobs share it. They differ in their
`SupervisorEvents`.
"""

import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from myxtts.distributed.processes import ChildProcess, OutputReader
from myxtts.distributed.stop_signals import StopSignals

POLL_S = 0.1

Outcome = Literal["done", "stopped", "rejected", "failed"]


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
    """How a program ended.

    Attributes:
        outcome: `stopped` on request; `rejected` with exit code 2, a user-fixable error.
    """

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
        events: callbacks.
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
        self._stop, self._events, self._stop_signal, self._grace = stop, events, stop_signal, grace
        self._running: dict[ChildProcess, ProgramSpec] = {}
        self._restarts: dict[str, int] = {}
        self._handled_requests = 0
        self._failed_s: float | None = None  # when the first program failed
        self._is_ending = False

    def run(self, programs: Sequence[ProgramSpec]) -> list[Exit]:
        """Run programs until all have ended. Start none after a request to stop.

        Returns:
            how each program ended, in the order of their ends.
        """
        exits: list[Exit] = []
        with ExitStack() as resources:
            self._resources, self._output = resources, resources.enter_context(OutputReader())
            resources.callback(self._kill_all)
            for program in programs:
                if not self._stop.count:
                    self._start(program, restarts=0)
            while self._running:
                ended = [process for process in self._running if process.has_ended()]
                self._forward_output(0.0 if ended else POLL_S)
                exits += [exit for process in ended if (exit := self._reap(process)) is not None]
                self._forward_stop()
                self._end_after_failure()
                self._events.on_poll()
        return exits

    def _start(self, program: ProgramSpec, restarts: int) -> None:
        log = self._resources.enter_context(open(program.log, "ab", buffering=0))  # noqa: SIM115 - open until all end
        process = ChildProcess(
            program.command, log, program.title or program.name, program.environ, program.cores
        )
        self._output.add(process)
        self._running[process] = program
        self._restarts[program.name] = restarts
        self._events.on_start(program, process.pid, restarts)

    def _forward_output(self, wait_s: float) -> None:
        for process, line in self._output.lines(wait_s):
            if (
                process in self._running
            ):  # a descendant in another group may outlive the program and still print
                self._events.on_line(self._running[process], line)

    def _reap(self, process: ChildProcess) -> Exit | None:
        """Remove a process that has ended; return None if its program was restarted."""
        program = self._running.pop(process)
        exit = Exit(program, process, self._outcome(process.code or 0))
        restarts = self._restarts[program.name]
        if exit.outcome == "failed" and restarts < program.max_restarts and not self._stop.count:
            self._events.on_restart(program, process, restarts + 1)
            self._start(program, restarts + 1)
            return None
        if exit.outcome in ("failed", "rejected") and self._failed_s is None:
            self._failed_s = time.monotonic()
        self._events.on_exit(exit)
        return exit

    def _outcome(self, code: int) -> Outcome:
        if code == 0:
            return "done"
        if self._is_ending or self._stop.count > 1 or self._stop.caused(code):
            return "stopped"
        return "rejected" if code == 2 else "failed"

    def _forward_stop(self) -> None:
        if self._stop.count > self._handled_requests:
            self._handled_requests = self._stop.count
            self._events.on_stop(self._stop)
            if self._stop.count > 1:
                self._kill_all()
            else:
                received = (
                    signal.SIGTERM if self._stop.signal == signal.SIGHUP else self._stop.signal
                )
                self._signal_all(self._stop_signal or received or signal.SIGTERM)

    def _end_after_failure(self) -> None:
        if self._grace is None or self._failed_s is None:
            return
        waited_s = time.monotonic() - self._failed_s
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
