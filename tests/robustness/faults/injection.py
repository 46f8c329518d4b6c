"""Faults of system calls: an error number or a signal at the nth call on a file. No TensorFlow.

The preloaded shim.c sees the calls of all libraries, except those that stdio makes by itself.
"""

import ctypes
import errno
import os
import resource
import signal
import subprocess
import time
from dataclasses import dataclass
from itertools import count
from pathlib import Path

CALLS = {"create": 1, "open": 2, "read": 4, "write": 8}
CALLS |= {"fsync": 16, "rename": 32, "mkdir": 64, "unlink": 128}
CHANGING = ("create", "write", "fsync", "rename", "mkdir", "unlink")
GROWING = ("create", "write", "fsync", "mkdir")
SOURCE = Path(__file__).with_name("shim.c")


@dataclass(frozen=True)
class Injection:
    """What happens at a named point: the nth call of one of some kinds on a file."""

    calls: tuple[str, ...]  # keys of CALLS
    file: str  # part of the path
    nth: int  # from 1
    error: int = 0  # errno that the call fails with, or 0
    signal: int = 0  # that the process gets before the call, if there is no error
    lasting: bool = False  # the later calls fail, too
    root: Path | None = None  # of the files, if it is another one than that of the runs

    def __str__(self) -> str:
        what = errno.errorcode[self.error] if self.error else signal.Signals(self.signal).name
        later = " and later" if self.lasting else ""
        return f"{what} at {'/'.join(self.calls)} '{self.file}' #{self.nth}{later}"

    def arm(self, root: Path) -> None:
        """Let it happen in this process, on files below `root`."""
        mask = sum(CALLS[call] for call in self.calls)
        action, value = (0, self.error) if self.error else (1, self.signal)
        arguments = mask, self.nth, int(self.lasting), action, value
        places = os.fsencode(self.root or root), os.fsencode(self.file)
        ctypes.CDLL(None).fault_arm(*places, *arguments)


def compile_shim(folder: Path) -> Path:
    """Compile shim.c; CalledProcessError if it fails, OSError without a compiler."""
    shim = folder / "shim.so"
    command = ["cc", "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(shim), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return shim


def redirect(from_port: int, to_port: int) -> None:
    """Let this process connect to another port in place of one of this machine."""
    ctypes.CDLL(None).fault_redirect(from_port, to_port)


@dataclass(frozen=True)
class ClockJump:
    """Python's clock of the day jumps at its nth reading; clocks of durations go on."""

    seconds: float
    nth: int

    def __str__(self) -> str:
        return f"time.time() jumps by {self.seconds:+,.0f} s at its reading #{self.nth}"

    def arm(self, root: Path) -> None:
        numbers, real, real_ns = count(1), time.time, time.time_ns

        def offset_s() -> float:
            return self.seconds if next(numbers) >= self.nth else 0.0

        time.time = lambda: real() + offset_s()
        time.time_ns = lambda: real_ns() + round(offset_s() * 1e9)


@dataclass(frozen=True)
class SizeLimit:
    """No file may grow beyond a size: RLIMIT_FSIZE, which Python reports as EFBIG."""

    size: int

    def __str__(self) -> str:
        return f"no file beyond {self.size:,} bytes"

    def arm(self, root: Path) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, resource.RLIM_INFINITY))


@dataclass(frozen=True)
class Defect:
    """A planted defect of the program: the report of a step raises KeyError."""

    step: int

    def __str__(self) -> str:
        return f"a planted defect at step {self.step}"

    def arm(self, root: Path) -> None:
        from myxtts.report.reporter import Reporter

        write = Reporter.write

        def defective(reporter: Reporter, step: int, *arguments, **keywords) -> None:
            if step == self.step:
                raise KeyError("planted")
            write(reporter, step, *arguments, **keywords)

        Reporter.write = defective
