"""Section 7: the whole program: its preflight, a run killed and resumed, and tests on GPUs."""

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.proof.runs import (
    KILLED,
    LEAST_S,
    NO_TIME,
    placement_flags,
    read_reports,
    run_flags,
    run_program,
    run_script,
)
from benchmarks.proof.section import Scope, SectionResult
from myxtts.base.clock import Interval

TITLE = "The whole"
GPU_TESTS = ("tests.test_dual_gpu_device_placement", "tests.test_intelligent_gpu_pipeline")
REMARKS = ("\u274c", "\u26a0")  # the marks of a failed check and of a warning
STEP_LINE = re.compile(r"step +(\d+) \|")
# A resumed run counts the steps since its start.
OF_INTERVALS = {*Interval().metrics(), "remaining_s"}


class Length(NamedTuple):
    """Steps of the run that is killed.

    Attributes:
        kill_step: the step after whose report it is killed.
        checkpoint_every: the run continues after the last multiple of it.
    """

    steps: int
    kill_step: int
    checkpoint_every: int
    log_every: int


def run(scope: Scope) -> SectionResult:
    found = SectionResult(TITLE)
    for part in (check_preflight, check_resume, check_tests):
        part(scope, found)
        scope.record(found)
    return found


def length_of(scope: Scope) -> Length:
    if scope.small:
        return Length(4, 2, 2, 1)
    return Length(300, 160, 50, 10) if scope.is_real else Length(40, 24, 10, 2)


def check_preflight(scope: Scope, found: SectionResult) -> None:
    """Run the preflight with the settings of the run after it."""
    claim, expected = "validate_dual_gpu_pipeline.py finds this machine ready", "all checks passed"
    file = scope.out / "preflight.json"
    flags = run_flags(scope, "preflight", "tiny", length_of(scope).steps, 1)
    flags += placement_flags(scope)
    flags += ["--json", str(file), *(["--steps", "4"] if scope.small else [])]
    finished = run_program(scope, "preflight", flags, scope.left_s)
    if not file.exists():
        found.lines += [f"The preflight did not finish: {finished.reason}.", ""]
        found.add(claim, finished.reason, expected, None if NO_TIME in finished.reason else False)
        return
    found.data["preflight"] = report = json.loads(file.read_text(encoding="utf-8"))
    summary = next((line for line in reversed(finished.lines) if line.strip()), "")
    remarks = [line.strip() for line in finished.lines if line.strip().startswith(REMARKS)]
    found.lines += ["The preflight: " + "; ".join([summary, *remarks]), ""]
    found.add(claim, summary, expected, is_ready(report, not scope.is_real))


def is_ready(report: dict[str, Any], shares_cores: bool) -> bool | None:
    """Return whether a preflight passed; None if only GPUs that share cores did not overlap."""
    checks = [check for section in report["sections"] for check in section["checks"]]
    failed = [check["name"] for check in checks if check["status"] == "failed"]
    return None if shares_cores and failed == ["overlap"] else not failed


def check_resume(scope: Scope, found: SectionResult) -> None:
    """Kill a run, resume it, and compare its losses with those of a run that was not disturbed."""
    length = length_of(scope)
    claim = f"a run of {length.steps} steps that is killed and resumed"
    claim += " has the losses of an undisturbed one"
    expected = "bit for bit" + ("" if scope.simulated else ", with --deterministic")
    problem = run_thrice(scope, length)
    if problem:
        found.lines += [f"A run of {length.steps} steps, killed and resumed: {problem}.", ""]
        found.add(claim, problem, expected, None if NO_TIME in problem else False)
        return
    losses = {name: losses_of(scope, name) for name in ("whole", "killed")}
    whole, killed = losses.values()
    different = sorted(step for step in whole if killed.get(step) != whole[step])
    differences = (largest_difference(whole[step], killed.get(step, {})) for step in different)
    worst = max(differences, default=0.0)
    resume = {"different_steps": different, "largest_difference": worst, "losses": losses}
    found.data["resume"] = resume
    here = f"{len(whole)} reports equal"
    if different:
        reports = f"{len(different)} of {len(whole)} reports differ"
        here = f"{reports}, from step {different[0]}, by up to {worst:.1e}"
    how = "stopped after step" if scope.small else "killed (SIGKILL) after the report of step"
    line = f"A run of {length.steps} steps was {how} {length.kill_step} and resumed: {here}."
    found.lines += [line, ""]
    found.add(claim, here, expected, not different)
    lines = (scope.out / "runs" / "whole" / "log.txt").read_text(encoding="utf-8").splitlines()
    found.lines += ["The end of the undisturbed run:", "", "```", *ending(lines), "```", ""]


def run_thrice(scope: Scope, length: Length) -> str:
    """Train undisturbed, until killed, and on from there; return why that failed, or \"\"."""

    def flags(name: str) -> list[str]:
        flags = run_flags(scope, name, "tiny", length.steps, length.log_every)
        flags += placement_flags(scope)
        flags += ["--checkpoint-every", str(length.checkpoint_every)]
        return flags if scope.simulated else [*flags, "--deterministic"]

    def reached(line: str) -> bool:
        step = STEP_LINE.match(line)
        return step is not None and int(step[1]) >= length.kill_step

    killed = flags("killed")
    if scope.small:  # a process of its own would take longer than all else
        runs = ((flags("whole"), None), ([*killed, "--stop-at-step", str(length.kill_step)], None))
    else:
        runs = ((flags("whole"), None), (killed, reached))
    for arguments, stop in (*runs, ([*killed, "--resume"], None)):
        if scope.left_s < LEAST_S and not scope.small:
            return NO_TIME
        finished = run_program(scope, "train", arguments, scope.left_s, stop)
        if stop is not None and finished.ended != KILLED:
            return finished.reason or "it ended before it was killed"
        if stop is None and finished.reason:
            return finished.reason
    return ""


def losses_of(scope: Scope, name: str) -> dict[int, dict[str, float]]:
    """Return losses, gradient norm and learning rate of a run by step."""
    losses = {}
    for report in read_reports(scope, name):
        values = {key: value for key, value in report.items() if key not in OF_INTERVALS}
        losses[report["step"]] = values
    return losses


def largest_difference(expected: dict[str, float], values: dict[str, float]) -> float:
    differences = (abs(expected[name] - values.get(name, float("inf"))) for name in expected)
    return max(differences, default=float("inf"))


def ending(log: Sequence[str]) -> list[str]:
    """Return the last report of a run and its summary, without the time of day."""
    lines = [line[len("2026-11-22 08:13:39 ") :] for line in log]
    summary = [line for line in lines if line.startswith(("time ", "grade ", "traces "))]
    return [line for line in lines if STEP_LINE.match(line)][-1:] + summary


def check_tests(scope: Scope, found: SectionResult) -> None:
    """Run the test modules that use real GPUs."""
    claim, expected = "the tests of devices and overlap pass on these GPUs", "OK"
    modules = " ".join(GPU_TESTS)
    if scope.small or scope.left_s < LEAST_S:
        reason = "left out with the smallest settings" if scope.small else NO_TIME
        found.lines += [f"`python -m unittest {modules}`: {reason}.", ""]
        found.add(claim, reason, expected, None)
        return
    finished = run_script(["-m", "unittest", *GPU_TESTS], scope.out / "tests.log", scope.left_s)
    ran = next((line for line in finished.lines if line.startswith("Ran ")), "")
    failures = [line for line in finished.lines if line.startswith(("FAIL: ", "ERROR: "))]
    here = f"{ran}: {finished.lines[-1]}" if ran else finished.reason
    found.data["tests"] = {"result": here, "failures": failures, "seconds": finished.seconds}
    found.lines += [
        f"`python -m unittest {modules}`: {here}.",
        *[f"- {line}" for line in failures],
        "",
    ]
    met = None if finished.ended or scope.simulated else True
    if finished.code and not finished.ended:
        met = False
    found.add(claim, here, expected, met)
