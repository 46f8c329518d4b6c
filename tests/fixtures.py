"""Folders, contexts, clocks, processes and signals that test modules share. No TensorFlow."""

import contextlib
import io
import json
import logging
import os
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from unittest import mock

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ, audio_format
from myxtts.base.console import report_errors
from myxtts.checkpoints import files as checkpoint_files
from myxtts.checkpoints.files import Checkpoint, Record
from myxtts.config.schema import Config

DEADLINE_S = 120.0  # of what takes a second on an idle machine
SINGLE, DUAL, REVERSED = (
    ("--data-gpu", data, "--model-gpu", model) for data, model in ("00", "01", "10")
)


def temporary_folder(add_cleanup: Callable, prefix: str | None = None) -> Path:
    """Create a folder, which the `add_cleanup` of a test, class or module removes."""
    folder = tempfile.TemporaryDirectory(prefix=prefix)
    add_cleanup(folder.cleanup)
    return Path(folder.name)


class FolderCase(unittest.TestCase):
    """A test with a temporary folder."""

    def setUp(self):
        self.folder = temporary_folder(self.addCleanup)

    def write(self, name: str, content: str | bytes = "") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def write_package(self, module: str, code: str, entry_points: str) -> Path:
        """Write an installed package of one module; return the folder for `sys.path`."""
        self.write(f"site/{module}.py", code)
        self.write(f"site/{module}-1.0.dist-info/METADATA", f"Name: {module}\nVersion: 1.0\n")
        return self.write(f"site/{module}-1.0.dist-info/entry_points.txt", entry_points).parents[1]

    def pipe(self) -> Path:
        path = self.folder / "pipe"
        os.mkfifo(path)
        return path


def entered(add_cleanup: Callable, context: contextlib.AbstractContextManager):
    """Enter a context until the cleanup; return its value. `enterContext` needs Python 3.11."""
    value = context.__enter__()
    add_cleanup(context.__exit__, None, None, None)
    return value


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Work in a folder; `contextlib.chdir` needs Python 3.11."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def files_below(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder and of the folders in it, by their relative paths."""
    files = filter(Path.is_file, folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def make_record(**values) -> Record:
    """Return a record with these values, and small ones for the rest that has no default."""
    small = {"symbols": ("a", "b"), "languages": ("en",), "speakers": ("s0",), "start": "f00"}
    small["audio_format"] = audio_format(SAMPLE_RATE_HZ)
    return Record(**{"settings": Config(), **small, **values})


def replace_arrays(checkpoint: Path, group: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write other arrays to a checkpoint, which records them as its own."""
    read = Checkpoint.read(checkpoint)
    archive = checkpoint_files.archive_of(checkpoint, group)
    digest = checkpoint_files.write_arrays(archive, arrays)
    read.update(digests=read.record.digests | {group: digest})


def rewrite_state(checkpoint: Path, change: Callable[[dict], object]) -> None:
    """Change the state.json of a checkpoint as `change` does, also to what no run writes."""
    values = json.loads((checkpoint / "state.json").read_bytes())
    change(values)
    for added in ("format", "sha256"):
        values.pop(added, None)
    checkpoint_files.write_state_json(checkpoint, values)


class ManualTime:
    """A clock that moves only when `advance` is called."""

    def __init__(self):
        self.s = 1_000.0

    def __call__(self) -> float:
        return self.s

    def advance(self, seconds: float) -> None:
        self.s += seconds


def ends(pid: int) -> bool:
    """Return whether a process ends, reaped or not."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


@contextlib.contextmanager
def signal_at(step: int, number: int):
    """Send this process a signal when the run in it reports a step."""

    class Sender(logging.Handler):
        def emit(self, record):
            if record.getMessage().startswith(f"step {step:6d} |"):
                os.kill(os.getpid(), number)

    sender, logger = Sender(), logging.getLogger("myxtts.report.reporter")
    logger.addHandler(sender)
    try:
        yield
    finally:
        logger.removeHandler(sender)


def reported(program: Callable[[], int]) -> tuple[int, str]:
    """Run a program of the command line; returns its exit code and message."""
    stderr = io.StringIO()
    with (
        contextlib.redirect_stderr(stderr),
        mock.patch("myxtts.base.console.log_to_console"),
        # Those of earlier runs in this process.
        mock.patch.object(logging.getLogger("myxtts"), "handlers", []),
    ):
        return report_errors(program), stderr.getvalue()
