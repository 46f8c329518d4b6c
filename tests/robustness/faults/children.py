"""Programs of the package as forks of this process, which has imported TensorFlow and started no
device. Linux only.

A fork costs what a program does after its imports. It becomes a process of its own session, with
its own output, the default signal handlers and the arguments of the program; it ends as Python
ends, with all that Python does at its exit.
"""

import contextlib
import ctypes
import faulthandler
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[3]
POLL_S = 0.02
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
STACKS_S = 1.0  # for a process that hangs to write its stacks
MAX_FACTOR = 10.0  # a limit leaves out waits for a processor, but ends at so many times itself
ORPHAN_GRACE_S = 5.0  # from the end of a process to the end of its helpers

Prepare = Callable[[], None]
_numbers = count(1)


class Child:
    """A program that runs in a fork, with the files of its output. Its `code` is the exit code, or
    minus the number of the signal that ended it, and None while it runs; SIGSTOP may hold it.
    """

    def __init__(self, pid: int, out: Path, err: Path):
        self.pid, self.out, self.err = pid, out, err
        self.code: int | None = None
        self.is_stopped = False
        self.started_s = time.monotonic()
        self.cpu_s = 0.0

    def poll(self) -> int | None:
        """Return the exit code, if the process has ended."""
        if self.code is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG | os.WUNTRACED)
            if pid and os.WIFSTOPPED(status):
                self.is_stopped = True
            elif pid:
                self.code = os.waitstatus_to_exitcode(status)
                self.cpu_s = usage.ru_utime + usage.ru_stime
        return self.code

    def wait(self, limit_s: float, meanwhile: Callable[["Child"], None] = lambda _: None) -> bool:
        """Wait for the end of the process; return whether it came within a limit, see `exceeds`."""
        while self.poll() is None and not self.exceeds(limit_s):
            meanwhile(self)
            time.sleep(POLL_S)
        return self.code is not None

    def exceeds(self, limit_s: float) -> bool:
        """Whether more than a limit has passed since the start, without waits for a processor."""
        return _has_passed(self.started_s, limit_s, [self.pid])

    def send(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)
            self.is_stopped = self.is_stopped and number != signal.SIGCONT

    def kill(self) -> None:
        """End the process, after it has written the stacks of its threads beside its output."""
        waits_s = {signal.SIGCONT: 0.0, signal.SIGUSR1: STACKS_S, signal.SIGKILL: 60.0}
        for number, seconds in waits_s.items():
            self.send(number)
            end_s = time.monotonic() + seconds
            while self.poll() is None and time.monotonic() < end_s:
                time.sleep(POLL_S)

    def output(self) -> str:
        return self.out.read_text(errors="replace")

    def errors(self) -> str:
        return self.err.read_text(errors="replace")


def start(
    command: Sequence[str],
    folder: Path,
    name: str,
    prepare: Sequence[Prepare] = (),
    environ: Mapping[str, str] = {},
) -> Child:
    """Start a program in a fork: a script of the checkout, or `-m` and a module, with arguments.

    Args:
        folder: gets NAME.out and NAME.err, NAME.stacks if the program hangs, and its temporary
            files.
        prepare: called in the fork before the program.
    """
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    for file in (out, err):
        file.write_bytes(b"")  # so that they can be read at once
    sys.stdout.flush()
    sys.stderr.flush()
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        for number, file in ((1, out), (2, err)):
            descriptor = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
            os.dup2(descriptor, number)
            os.close(descriptor)
        become(command, folder, name, prepare, environ, parent)
    return Child(pid, out, err)


def become(
    command: Sequence[str],
    folder: Path,
    name: str,
    prepare: Sequence[Prepare],
    environ: Mapping[str, str],
    parent: int,
) -> NoReturn:
    """Turn a fork into a program whose output goes to descriptors 1 and 2; never returns."""
    code = 97
    try:
        with contextlib.suppress(PermissionError):  # it leads its session already
            os.setsid()
        die_with(parent)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        sys.stderr.reconfigure(line_buffering=True, errors="backslashreplace")
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        faulthandler.register(signal.SIGUSR1, open(folder / f"{name}.stacks", "w"))  # noqa: SIM115 - until its end
        (folder / "tmp").mkdir(exist_ok=True)
        os.environ.update(environ, TMPDIR=str(folder / "tmp"))
        tempfile.tempdir = None
        for step in prepare:
            step()
        code = run(command)
    except BaseException:  # of this function: `run` has caught those of the program
        import traceback

        traceback.print_exc()
        code = 97
    ctypes.pythonapi.Py_Exit(code)  # what Python itself calls after SystemExit
    raise AssertionError


def run(command: Sequence[str]) -> int:
    """Run a program in this process as Python's command line does; return its exit code."""
    words = [word for word in command if word != "-u"]
    try:
        if words[0] == "-m":
            sys.argv = ["-m", *words[2:]]
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    # Of the program: reported, and the fork ends, as a process of its own would.
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def die_with(parent: int) -> None:
    """Let this fork be killed when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of the processes that the programs leave behind."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_orphans(known: Sequence[int]) -> list[str]:
    """Wait for the helpers of ended programs, then kill those that are left; return their names.

    Args:
        known: process IDs of children that may run.
    """
    began_s = time.monotonic()
    while (left := _children(known)) and not _has_passed(began_s, ORPHAN_GRACE_S, left):
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(POLL_S)
    lines = [_command_line(pid) for pid in left]
    for pid in left:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return lines


def _has_passed(began_s: float, limit_s: float, pids: Sequence[int]) -> bool:
    passed_s = time.monotonic() - began_s
    if passed_s <= limit_s or passed_s > MAX_FACTOR * limit_s:
        return passed_s > limit_s
    return passed_s - sum(map(queued_s, pids)) > limit_s


def queued_s(pid: int) -> float:
    """Return how long the threads of a process and of its children have waited for a processor: the
    sum, since threads wait for each other; those that have ended are missing.
    """
    total_s = 0.0
    for task in Path(f"/proc/{pid}/task").glob("*"):
        # It has just ended, or the system keeps no such times.
        with contextlib.suppress(OSError, IndexError):
            total_s += int((task / "schedstat").read_text().split()[1]) / 1e9
            total_s += sum(map(queued_s, map(int, (task / "children").read_text().split())))
    return total_s


def _children(known: Sequence[int]) -> list[int]:
    """Return the process IDs of this process' other children."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return [pid for pid in map(int, path.read_text().split()) if pid not in known]


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return f"process {pid} ({state}): {Path(f'/proc/{pid}/comm').read_text().strip()}"
    return f"process {pid}"


class ForkedPopen:
    """What `ChildProcess` uses of `subprocess.Popen`, for a program that this Python would run: a
    fork saves seconds. It has its own session, and one pipe for all output.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], preexec_fn: Prepare, **_):
        reading, writing = os.pipe()
        folder, name = Path(os.environ["TMPDIR"]), f"child-{next(_numbers)}-of-{os.getpid()}"
        parent, self.returncode, self.pid = os.getpid(), None, os.fork()
        if self.pid == 0:
            os.close(reading)
            for number in (1, 2):
                os.dup2(writing, number)
            os.close(writing)
            os.environ.clear()
            become(command[1:], folder, name, [preexec_fn], env, parent)
        os.close(writing)
        self.stdout = os.fdopen(reading, "rb", buffering=0)

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def fork_children() -> None:
    """Let the launchers of this process fork their children."""
    from myxtts.base import processes

    def popen(command: Sequence[str], **settings):
        is_python = command[0] == sys.executable
        return (ForkedPopen if is_python else subprocess.Popen)(command, **settings)

    processes.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": popen})
