"""Kills and full disks at a chosen call that changes the disk, in process."""

import builtins
import contextlib
import errno
import io
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

MODULES = ("myxtts.base.files", "myxtts.checkpoints.files")  # whose files are watched
GROWING = ("write", "mkdir", "fsync")
CHANGING = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync")  # functions of the module os


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it, and after it nothing changes the disk."""


def terminate_parent(folder: Path, *_) -> None:
    """Send the parent process a SIGTERM, and wait with a temporary folder inside of `folder`."""
    with tempfile.TemporaryDirectory(dir=folder):
        os.kill(os.getppid(), signal.SIGTERM)
        threading.Event().wait()


class KillPoints:
    """Lists the calls that change the disk, as `rename step-000010`, and ends the process at one of
    them.

    Args:
        at: index of the call in whose place `end` is called; None only lists. All calls after it
            end, too.
        thread: name of the only thread whose calls count.
    """

    def __init__(self, at: int | None = None, thread: str | None = None):
        self.names: list[str] = []
        self._at, self._thread = at, thread

    def reach(self, call: str, path: object) -> None:
        """Called before each change."""
        if self._thread is None or threading.current_thread().name == self._thread:
            file = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else str(path)
            self.names.append(f"{call} {Path(file).name}")
            if self._at is not None and len(self.names) > self._at:
                self.end(call, path)

    def end(self, call: str, path: object) -> None:
        raise Killed

    @contextlib.contextmanager
    def active(self) -> Iterator["KillPoints"]:
        """Watch the calls of all threads in the scope, without flushing, which takes most time."""
        with contextlib.ExitStack() as patches:
            for name in CHANGING:
                patches.enter_context(
                    mock.patch(f"os.{name}", self._watched(name, getattr(os, name)))
                )
            for module in MODULES:
                patches.enter_context(mock.patch(f"{module}.open", self._open, create=True))
            yield self

    def _watched(self, name, function):
        def watched(path, *args, **kwargs):
            self.reach(name, path)
            return None if name == "fsync" else function(path, *args, **kwargs)

        return watched

    def _open(self, path, mode="r", *args, **kwargs):
        if mode != "wb":
            return builtins.open(path, mode, *args, **kwargs)
        return _WatchedFile(path, self)


class RealKillPoints(KillPoints):
    """Kills the process."""

    def end(self, call: str, path: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class FullDisk(KillPoints):
    """From a call on, the disk takes nothing more, but files can be renamed and removed."""

    def end(self, call: str, path: object) -> None:
        if call in GROWING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _WatchedFile(io.BufferedWriter):
    def __init__(self, path, points: KillPoints):
        super().__init__(io.FileIO(path, "w"))
        self._path, self._points = path, points

    def write(self, data, /):
        self._points.reach("write", self._path)
        return super().write(data)
