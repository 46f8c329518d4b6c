"""One case: its runs, and what is checked after each."""

import contextlib
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from myxtts.base.errors import PeerLost
from myxtts.devicefeed.errors import UserError
from tests.robustness.faults.children import Child
from tests.robustness.faults.injection import Injection
from tests.robustness.faults.lab import CHECKPOINT_EVERY, LIMIT_S, SCRIPT, Lab, newest_step

# Of a defect, in any output.
MARKS = ("Traceback (most recent call last)", "Exception ignored", "Fatal Python error")
MARKS += ("--- Logging error ---", "terminate called", "Check failed", "double free")
MARKS += ("corrupted size",)
STEP = re.compile(r"^step +(\d+) \|", re.MULTILINE)
RESUMED = re.compile(r"^resumed +.*step-(\d+)$", re.MULTILINE)
STOPPED = re.compile(r"^stopped +by \S+ at step (\d+), after a checkpoint", re.MULTILINE)
ERROR = re.compile(r"^error: ", re.MULTILINE)
# What TensorFlow's libraries say of lost connections, and a full disk behind stdout.
EXPECTED = re.compile(
    r"^[EW]\d{4} \d.*\n|^Additional GRPC error information.*\n|^:[A-Z_]+:Error received from"
    r" peer.*\n"
    r"|^warning: stdout ends here: .*\n",
    re.MULTILINE,
)
LEAST_MESSAGE = 40  # characters of a message that says what to do
MAX_TEXT = 1500  # characters of an output that a report keeps
STOPS = {signal.SIGINT: 128 + signal.SIGINT, signal.SIGTERM: 128 + signal.SIGTERM}


class Arms(Protocol):
    """A fault that a process arms in itself."""

    def arm(self, root: Path) -> None: ...


class Failure(NamedTuple):
    kind: str
    text: str


class Interrupt(NamedTuple):
    """A signal from outside."""

    number: int
    line: str = ""  # sent when the output has this text; or
    fraction: float = 0.0  # sent after this fraction of the time of an undisturbed run
    pause_s: float = 1.0  # from SIGSTOP to SIGCONT

    def __str__(self) -> str:
        when = f"at '{self.line}'" if self.line else f"after {self.fraction:.2f} of a run"
        return f"{signal.Signals(self.number).name} {when}"


class Finished(NamedTuple):
    """A program that has ended, with its code as a shell reports it: 128 + the number of a signal;
    it hung if it had to be killed.
    """

    code: int
    out: str
    err: str
    hung: bool

    @property
    def last_step(self) -> int:
        """The last step that it reported, or the one that it resumed from; 0 without one."""
        steps = STEP.findall(self.out) or RESUMED.findall(self.out)
        return int(steps[-1]) if steps else 0

    @property
    def message(self) -> str:
        return self.err.rpartition("error: ")[2].strip()


@dataclass
class Trial:
    """A case while it runs: `random`, of `case.draw`, chooses all that it does."""

    lab: Lab
    folder: Path  # of this case alone
    random: random.Random
    limit_s: float = LIMIT_S
    steps: list[str] = field(default_factory=list)  # what was done, for the report
    failures: list[Failure] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)
    # Process IDs of this test, such as a proxy, which are no orphans.
    helpers: list[int] = field(default_factory=list)
    faults: int = 0

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def run_dir(self) -> Path:
        return self.runs / "run"

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a process that may have ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def fail(self, kind: str, text: str) -> None:
        self.failures.append(Failure(kind, f"{text} [{'; '.join(self.steps)}]"))

    def copy_template(self, without: Sequence[int] = ()) -> None:
        """Copy the undisturbed run, without some of its checkpoints."""
        shutil.copytree(self.lab.template, self.run_dir)
        for step in without:
            shutil.rmtree(self.run_dir / "checkpoints" / f"step-{step:06d}")

    def start(self, flags: Sequence[str], *arms: Arms, **keywords: Any) -> Child:
        """Start a training run of the case; `corpus` replaces that of the lab."""
        argv = [SCRIPT, *self.lab.flags(self.runs, "run", keywords.pop("corpus", None)), *flags]
        return self.launch(argv, *arms, **keywords)

    def launch(self, command: Sequence[str], *arms: Arms, **keywords: Any) -> Child:
        """Start a program of the case; `further` is called in it, too."""
        prepare = [lambda arm=arm: arm.arm(self.runs) for arm in arms]
        prepare += keywords.pop("further", ())
        name = f"program-{len(self.children) + 1}"
        child = self.lab.launcher.start(command, self.folder, name, prepare, **keywords)
        self.children.append(child)
        return child

    def train(
        self,
        what: str,
        *flags: str,
        arms: Sequence[Arms] = (),
        interrupts: Sequence[Interrupt] = (),
        codes: Sequence[int] = (0,),
        meanwhile: Any = lambda _: None,
        checks_start: bool = True,
        planted: str = "",
        **keywords: Any,
    ) -> Finished:
        """Train, resuming if there is a checkpoint, and check how the program ends.

        Args:
            codes: exit codes that are right.
            meanwhile: called with the running child again and again.
            checks_start: the run must resume from the newest checkpoint.
            planted: last line of the traceback of a defect that is there on purpose.
        """
        self.steps.append(what)
        self.faults += len(arms) + len(interrupts)
        before = newest_step(self.run_dir)
        child = self.start(["--resume", *flags], *arms, **keywords)
        sender = Sender(interrupts, self.lab.seconds)
        kills = [arm for arm in arms if isinstance(arm, Injection) and arm.signal]

        def watch(running: Child) -> None:
            sender.poll(running)
            meanwhile(running)

        finished = self.finish(child, codes, watch, planted)
        self.check_checkpoints(finished, before, bool(kills or interrupts), checks_start)
        return finished

    def finish(
        self,
        child: Child,
        codes: Sequence[int],
        meanwhile: Any = lambda _: None,
        planted: str = "",
        may_abort: bool = False,
    ) -> Finished:
        """Wait for the end of a program and check its exit code, its output and what it leaves
        behind.

        Args:
            may_abort: a check in TensorFlow's C++ may end the process by SIGABRT, which no Python
                code can prevent.
        """
        hung = not child.wait(self.limit_s, meanwhile)
        child.kill()
        code = child.code or 0
        finished = Finished(code if code >= 0 else 128 - code, child.output(), child.errors(), hung)
        if hung:
            stacks = child.out.with_suffix(".stacks").read_text(errors="replace")
            self.fail("hang", f"no end within {self.limit_s:.0f} s: {stacks[-MAX_TEXT:]}")
        elif may_abort and finished.code == 128 + signal.SIGABRT and "Check failed" in finished.err:
            self.steps.append("TensorFlow aborted a process")
        else:
            self.check_end(finished, codes, planted)
        running = [child.pid for child in self.children if child.code is None]
        for line in self.lab.launcher.end_orphans([*running, *self.helpers]):
            self.fail("orphan", line)
        return finished

    def check_end(self, finished: Finished, codes: Sequence[int], planted: str = "") -> None:
        """Check the exit code and the messages of a program."""
        output = finished.out + finished.err
        if planted and finished.err.rstrip().endswith(planted):
            output = ""
        for mark in (mark for mark in MARKS if mark in output):
            self.fail("traceback", essence(output[output.index(mark) :]))
            return
        if finished.code not in codes:
            last = (finished.err or finished.out)[-MAX_TEXT:]
            self.fail("exit code", f"{finished.code}, not one of {list(codes)}: {last}")
            return
        said = EXPECTED.sub("", finished.err)
        count = len(ERROR.findall(said))
        is_message = finished.code in (UserError.exit_code, PeerLost.exit_code)
        if is_message and count != 1:
            self.fail("message", f"{count} messages, not 1: {said[-MAX_TEXT:]!r}")
        if is_message and not is_advice(finished.message):
            self.fail("message", f"it says not what to do: {finished.message!r}")
        if finished.code == 0 and said.strip():
            self.fail("message", f"stderr of a run that succeeded: {said[-MAX_TEXT:]!r}")

    def check_checkpoints(
        self, finished: Finished, before: int, is_killed: bool, checks_start: bool
    ) -> None:
        """Check that no older checkpoint is lost, and that a stop has saved its step."""
        newest, resumed = newest_step(self.run_dir), RESUMED.findall(finished.out)
        start = int(resumed[-1]) if resumed else 0
        if checks_start and start < before and (resumed or finished.last_step):
            self.fail("lost steps", f"started from {start}, but there was a checkpoint of {before}")
        # The save of a step waits until the checkpoint before is on the disk.
        complete = (max(finished.last_step - 1, 0) // CHECKPOINT_EVERY - 1) * CHECKPOINT_EVERY
        least = max(before, complete if is_killed else before)
        if stopped := STOPPED.findall(finished.out):
            least = int(stopped[-1])
        if newest < least:
            self.fail("lost steps", f"the newest checkpoint is {newest}, but {least} was complete")

    def finish_run(
        self, what: str = "undisturbed", *flags: str, may_lack_lines: bool = False, **keywords: Any
    ) -> None:
        """Let the run go on undisturbed, and compare it with the one that always was."""
        if self.train(what, *flags, **keywords).code == 0:
            self.check_equal(may_lack_lines)

    def check_equal(self, may_lack_lines: bool = False, since: int = 0) -> None:
        """Compare the finished run with the undisturbed one; see `Lab.differences`."""
        if differences := self.lab.differences(self.run_dir, may_lack_lines, since):
            self.fail("unequal", "; ".join(differences))


class Sender:
    """Sends signals to a program when their time has come, and lets a stopped program go on."""

    def __init__(self, interrupts: Sequence[Interrupt], run_s: float):
        self._waiting, self._run_s = list(interrupts), run_s
        self._continue_s: float | None = None

    def poll(self, child: Child) -> None:
        now_s = time.monotonic()
        if child.is_stopped:
            self._continue_s = self._continue_s or now_s + 1.0
            if now_s >= self._continue_s:
                self._continue_s = None
                child.send(signal.SIGCONT)
            return
        for interrupt in list(self._waiting):
            is_due = now_s - child.started_s >= interrupt.fraction * self._run_s
            if interrupt.line:
                is_due = interrupt.line in child.output()
            if is_due:
                self._waiting.remove(interrupt)
                self._continue_s = now_s + interrupt.pause_s
                child.send(interrupt.number)


def essence(traceback: str) -> str:
    """Return the last line of a traceback and its innermost places."""
    lines = [line.strip() for line in traceback.splitlines() if line.strip()]
    places = [line for line in lines if line.startswith("File ")]
    return " | ".join([lines[-1], *reversed(places[-4:])])[:MAX_TEXT]


def is_advice(message: str) -> bool:
    """Whether a message has two sentences and no value as Python shows objects."""
    sentences = re.split(r"(?<=[.!?:])\s", message)
    return len(message) >= LEAST_MESSAGE and len(sentences) >= 2 and " object at 0x" not in message
