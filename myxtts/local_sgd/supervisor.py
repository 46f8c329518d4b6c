"""The children of a launcher: started, watched, and started again where they die. No TensorFlow."""

import signal
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from myxtts.distributed.processes import Child, Pipes, Stop
from myxtts.local_sgd.launcher_state import LauncherState, Process
from myxtts.local_sgd.progress import Display, rows_of, table

POLL_S = 0.1


@dataclass(frozen=True)
class Program:
    """What a child runs.

    Attributes:
        name: in the record and the table.
        log: file for what it prints, behind what that holds already.
        environ: beside and instead of the launcher's own.
        cores: pins it to these.
        max_restarts: how often it may be started again after it died.
        shown: its lines are shown, too, and no table.
    """

    name: str
    command: tuple[str, ...]
    log: Path
    environ: dict[str, str] = field(default_factory=dict)
    cores: frozenset[int] | None = None
    max_restarts: int = 0
    shown: bool = False


class Supervisor:
    """Runs programs and keeps the record of them; a context manager, which kills what still runs when it is left."""

    def __init__(self, folder: Path, record: LauncherState, display: Display, stop: Stop):
        self._folder, self._record, self._display, self._stop = folder, record, display, stop
        self._running: dict[Child, Program] = {}
        self._told = 0  # how many of the requests to stop were passed on

    def __enter__(self) -> "Supervisor":
        self._opened = ExitStack()
        self._pipes = self._opened.enter_context(Pipes())
        self._opened.callback(lambda: [child.kill() for child in self._running])
        return self

    def __exit__(self, *error) -> None:
        self._opened.__exit__(*error)

    def run(self, programs: Sequence[Program]) -> dict[str, int]:
        """Run programs to their end, side by side; gives the last exit code of each, by name.

        None is started once a stop was requested.
        """
        codes: dict[str, int] = {}
        with_table = not any(program.shown for program in programs)
        for program in programs:
            if not self._stop.count:
                self._start(program, restarts=0)
        while self._running:
            ended = [child for child in self._running if child.has_ended()]
            for child, line in self._pipes.lines(0.0 if ended else POLL_S):
                if child in self._running and self._running[child].shown:  # what it started may outlive it
                    self._display.say(line)
            for child in ended:
                program = self._running.pop(child)
                codes[program.name] = child.code
                self._settle(child, program)
            self._pass_on()
            if with_table and self._display.is_due():
                self.show()
        return codes

    @property
    def was_asked_to_stop(self) -> bool:
        return self._stop.count > 0

    def show(self) -> None:
        self._display.show(table(rows_of(self._folder, self._record)))

    def _start(self, program: Program, restarts: int) -> None:
        log = self._opened.enter_context(open(program.log, "ab", buffering=0))  # noqa: SIM115 - open as long as the crew
        child = Child(program.name, program.command, log, program.name, program.environ, program.cores)
        self._pipes.add(child)
        self._running[child] = program
        self._note(program.name, Process.running(child.pid, restarts))

    def _note(self, name: str, process: Process) -> None:
        self._record.processes[name] = process
        self._record.write(self._folder)

    def _settle(self, child: Child, program: Program) -> None:
        """After its end: what the record has of it, what there is to say, and perhaps another start."""
        before = self._record.processes[program.name]
        if child.code == 0:
            state = "done"
        elif self._stop.explains(child.code) or self._stop.count > 1:
            state = "stopped"
        elif child.code == 2:
            state = "refused"
            self._complain(program, "\n".join(_message(child.last_lines)))
        elif before.restarts < program.max_restarts and not self._stop.count:
            self._display.say(
                f"{program.name} {child.how_it_ended()} ({program.log}); it goes on from its newest checkpoint "
                f"(restart {before.restarts + 1} of {program.max_restarts})"
            )
            self._start(program, before.restarts + 1)
            return
        else:
            state = "lost"
            self._complain(program, child.obituary())
        self._note(program.name, before.model_copy(update={"state": state}))

    def _complain(self, program: Program, text: str) -> None:
        if not program.shown:  # its last lines are there already
            self._display.say(f"error: {program.name}: {text}", error=True)

    def _pass_on(self) -> None:
        """The first request to stop lets all save; the second kills."""
        if self._stop.count > self._told:
            self._told = self._stop.count
            name = signal.Signals(self._stop.signal).name
            what = "all are killed" if self._told > 1 else "all save and end; a second Ctrl-C kills them"
            self._display.say(f"{name}: {what}")
            for child in self._running:
                child.kill() if self._stop.count > 1 else child.signal(signal.SIGTERM)


def _message(lines: Sequence[str]) -> list[str]:
    """What a program that ended with code 2 says of the reason, behind `error: `; all it said where nothing is so."""
    lines = list(lines)
    first = next((i for i, line in enumerate(lines) if line.startswith("error: ")), 0)
    return [line.removeprefix("error: ") for line in lines[first:]]
