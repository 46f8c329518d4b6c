"""Children of a launcher as forks of it, which saves seconds for each. No TensorFlow."""

import os
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import IO

from tests.robustness.faults.children import become

_numbers = count(1)


class ForkedPopen:
    """What `ChildProcess` uses of `subprocess.Popen`, for a program that this Python would run."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        preexec_fn: Callable[[], None],
        **_settings: object,  # its own session, and one pipe for all output, as here
    ):
        reading, writing = os.pipe()
        folder, name, parent = Path(os.environ["TMPDIR"]), f"child-{next(_numbers)}", os.getpid()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reading)
            for number in (1, 2):
                os.dup2(writing, number)
            os.close(writing)
            os.environ.clear()
            become(command[1:], folder, f"{name}-of-{parent}", [preexec_fn], env, parent)
        os.close(writing)
        self.stdout: IO[bytes] = os.fdopen(reading, "rb", buffering=0)

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def forked_children() -> None:
    """Let the launchers of this process fork their children."""
    from myxtts.distributed import processes

    def popen(command: Sequence[str], **settings: object) -> object:
        is_python = command[0] == sys.executable
        if is_python:
            return ForkedPopen(command, **settings)
        return subprocess.Popen(command, **settings)  # type: ignore

    names = ("DEVNULL", "PIPE", "STDOUT", "TimeoutExpired", "run")
    replaced = types.SimpleNamespace(
        Popen=popen, **{name: getattr(subprocess, name) for name in names}
    )
    processes.subprocess = replaced  # type: ignore[assignment, attr-defined]
