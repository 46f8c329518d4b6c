"""Runs programs on virtual GPUs, each in a fork of one process, which has imported TensorFlow.

    python -m tests.virtual_gpu -- -m tests.virtual_gpu.forks FOLDER

FOLDER has `programs.json`: the code and the arguments of each program by its name, and its settings
of the plug-in. Each program leaves `NAME.out`, `NAME.err` and `NAME.code`. They run at the same
time, the first ones before the others: one that is out of memory waits ten seconds for memory, and
computes nothing meanwhile.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.virtual_gpu import variables

IMPORTS = ("tensorflow", "librosa.filters", "myxtts.run.page", "fakes.toy", "fakes.threads")


class Program(NamedTuple):
    """Python code with its arguments, and settings of the plug-in such as `chaos=1`."""

    code: str
    arguments: tuple[str, ...] = ()
    settings: Mapping[str, object] = {}


class Forks:
    """Programs that run in forks; `wait` waits for all of them."""

    def __init__(self, folder: Path, programs: Mapping[str, Program], gpus: int):
        self._folder = folder
        (folder / "programs.json").write_text(json.dumps(programs))
        command = [sys.executable, "-m", "tests.virtual_gpu", "--gpus", str(gpus)]
        command += ["--", "-m", "tests.virtual_gpu.forks", str(folder)]
        options = {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, **options, start_new_session=True)

    def wait(self, timeout_s: float) -> dict[str, subprocess.CompletedProcess]:
        """Return what each program printed, and its exit code; end them all after so long."""
        try:
            _, errors = self._process.communicate(timeout=timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        assert self._process.returncode == 0, errors
        finished = {}
        for path in self._folder.glob("*.code"):
            out, err = (path.with_suffix(suffix).read_text() for suffix in (".out", ".err"))
            finished[path.stem] = subprocess.CompletedProcess(
                path.stem, int(path.read_text()), out, err
            )
        return finished


def main() -> int:
    folder = Path(sys.argv[1])
    programs = json.loads((folder / "programs.json").read_text())
    for name in IMPORTS:
        importlib.import_module(name)
    forks = {}
    for place, (name, program) in enumerate(programs.items()):
        fork = os.fork()
        if not fork:
            os.nice(place)
            return run(folder, name, Program(*program))
        forks[fork] = name
    for _ in programs:
        fork, status = os.wait()
        (folder / f"{forks[fork]}.code").write_text(str(os.waitstatus_to_exitcode(status)))
    return 0


def run(folder: Path, name: str, program: Program) -> int:
    """Run a program in this process."""
    for number, suffix in ((1, "out"), (2, "err")):
        with open(folder / f"{name}.{suffix}", "wb") as file:
            os.dup2(file.fileno(), number)
    os.environ.update(variables(program.settings))
    sys.argv = [name, *program.arguments]
    exec(compile(program.code, name, "exec"), {"__name__": "__main__"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
