"""Runs of the program for the proof: in their own process, or here where they are small."""

import contextlib
import importlib
import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.proof.section import Scope
from fakes.toy_models import toy_models
from myxtts.base.console import report_errors
from myxtts.base.processes import ChildProcess, ProgramSpec
from myxtts.report.metrics import read_metrics

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {
    "train": "train_main.py",
    "preflight": "validate_dual_gpu_pipeline.py",
    "replicas": "benchmarks/replicas.py",
}
POLL_S = 0.05
KILLED = "killed on purpose"
NO_TIME = "no time was left"
LEAST_S = 15.0  # a program is not started with less time

Stop = Callable[[str], bool]
"""(a line of the output) -> whether to kill the process now."""


class Finished(NamedTuple):
    """A run that has ended.

    Attributes:
        code: exit code, or minus the number of the signal that killed it.
        lines: of its output.
        ended: "" if it ended by itself, else why it was ended.
    """

    code: int
    lines: list[str]
    seconds: float
    ended: str = ""

    @property
    def reason(self) -> str:
        """Why it failed, in a line; "" if it did not."""
        if self.ended or not self.code:
            return self.ended
        last = next((line for line in reversed(self.lines) if line.strip()), "it printed nothing")
        errors = [line for line in self.lines if line.startswith("error: ")]
        return f"exit code {self.code}: {errors[0] if errors else last}"


def run_flags(scope: Scope, name: str, model_size: str, steps: int, log_every: int) -> list[str]:
    """Return the flags of a training run of the proof; flags after them take precedence."""
    flags = ["--run", name, "--runs-dir", str(scope.out / "runs")]
    flags += ["--train-data", str(scope.corpus), "--model-size", model_size]
    flags += ["--max-steps", str(steps), "--log-every", str(log_every)]
    flags += ["--validate-every", "0", "--sample-every", "0", "--checkpoint-every", "0"]
    # As in section 3: XLA compiles once for each shape.
    flags += ["--buckets", "1" if scope.small else "2"]
    if scope.small:
        flags += ["--batch-size", "2", "--text-frontend", "characters"]
        flags += ["--reference-seconds", "0.5", "--prefetch-buffer-size", "1", "--buffer-size", "1"]
    return flags


def placement_flags(scope: Scope) -> list[str]:
    """Return the flags of dual placement, or of single placement on the only GPU."""
    flags = ["--simulate-gpus", str(scope.gpus)] if scope.simulated else []
    return [*flags, "--data-gpu", "0", "--model-gpu", str(min(1, scope.gpus - 1))]


def run_program(
    scope: Scope, name: str, flags: Sequence[str], limit_s: float, stop: Stop | None = None
) -> Finished:
    """Run a program, as a script in a process of its own, or in this process with a toy model.

    Args:
        name: key of SCRIPTS.
        limit_s: seconds after which the process is killed.
        stop: called with each line; needs a process of its own.
    """
    program = [str(ROOT / SCRIPTS[name])]
    if scope.small and stop is None:
        if not scope.virtual:
            return run_in_process(name, flags)
        # GPUs cannot be configured again in a process.
        program = ["-c", f"from {__name__} import *; sys.exit(print_program({name!r}))"]
    return run_script([*program, *flags], scope.out / "runs.log", limit_s, stop)


def run_script(
    arguments: Sequence[str], log: Path, limit_s: float, stop: Stop | None = None
) -> Finished:
    """Run Python with these arguments in a process of its own; its output is added to a log."""
    began_s, lines, ended = time.monotonic(), [], ""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = (sys.executable, *arguments)
    child = ChildProcess(ProgramSpec("run", command, log, {"PYTHONPATH": path}))
    try:
        while not (ended or child.has_ended()):
            time.sleep(POLL_S)
            for line in child.read_lines():
                lines.append(line)
                if stop is not None and stop(line):
                    ended = KILLED
                    break
            if time.monotonic() - began_s > limit_s:
                ended = f"{NO_TIME} after {limit_s:.0f} s"
    finally:
        child.kill()
    lines += child.read_lines()
    return Finished(child.code, lines, time.monotonic() - began_s, ended)


def run_in_process(name: str, flags: Sequence[str]) -> Finished:
    """Run a program in this process with a toy model."""
    program = importlib.import_module(
        "benchmarks.replicas" if name == "replicas" else f"myxtts.commands.{name}"
    )
    began_s = time.monotonic()
    output = io.StringIO()
    with toy_models(), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = report_errors(lambda: program.main(flags))
    return Finished(code, output.getvalue().splitlines(), time.monotonic() - began_s)


def print_program(name: str) -> int:
    """Run a program with a toy model and the arguments of this process; return its exit code."""
    finished = run_in_process(name, sys.argv[1:])
    print(*finished.lines, sep="\n")
    return finished.code


def read_reports(scope: Scope, name: str) -> list[dict[str, Any]]:
    """Return the reports of a run in its metrics.jsonl; none if it has no such file."""
    return read_metrics(scope.out / "runs" / name / "metrics.jsonl")
