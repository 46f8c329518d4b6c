"""Runs sections one after the other, each in its own process, and writes their results at once."""

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from benchmarks.proof import page
from benchmarks.proof.run_section import run_section
from benchmarks.proof.section import RESULT_FILE, Figure, Scope, Section, write_json
from myxtts.base.processes import ChildProcess, ProgramSpec

ROOT = Path(__file__).resolve().parents[2]
GRACE = 0.1  # of a section's time, between its budget and its end by force
POLL_S = 0.2

Status = Literal["complete", "failed", "out of time", "killed", "stopped"]
Outcome = dict[str, Any]
"""The content of section-N.json: section, title, status, error, seconds, limit_s, run, lines,
figures, data.
"""


@dataclass(frozen=True)
class Run:
    """The settings that all sections share.

    Attributes:
        in_process: run the sections in this process, without time limits.
    """

    gpus: int
    simulated: bool
    small: bool
    out: Path
    corpus: Path
    in_process: bool = False
    virtual: bool = False

    def settings(self) -> dict[str, Any]:
        """Return what results must have in common to stand on one page."""
        kinds = {"simulated": self.simulated, "virtual": self.virtual}
        return {"gpus": self.gpus, **kinds, "small": self.small}


def run_sections(run: Run, sections: Sequence[Section], end_s: float) -> list[Outcome]:
    """Run sections until `end_s` (`time.monotonic()`) at the latest; return the outcomes, whose
    files are written.

    Time that a section leaves is shared by those after it.

    Raises:
        KeyboardInterrupt: the outcome of the section that ran is written.
    """
    discard_results(run)
    outcomes = []
    for number, section in enumerate(sections):
        share = section.share / sum(later.share for later in sections[number:])
        limit_s = max(0.0, end_s - time.monotonic()) * share
        print(
            f"section {section.number}      {section.title}, in at most {limit_s:.0f} s", flush=True
        )
        outcome = run_and_report(run, section, limit_s)
        print(f"  {summary(outcome)}", flush=True)
        outcomes.append(outcome)
    return outcomes


def run_and_report(run: Run, section: Section, limit_s: float) -> Outcome:
    """Run one section and write its outcome, also if Ctrl-C stops it."""
    folder = run.out / f"section-{section.number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    budget_s = limit_s * (1.0 - GRACE)
    shared = run.corpus, run.virtual
    scope = Scope(run.gpus, run.simulated, run.small, budget_s, folder, *shared)
    began_s = time.monotonic()
    status: Status = "stopped"
    error = "stopped by Ctrl-C"
    try:
        if run.in_process:
            code = run_section(section.module, scope)
            status, error = ("failed", "") if code else ("complete", "")
        else:
            status, error = run_in_process(section, scope, limit_s)
    finally:
        outcome = outcome_of(run, section, folder, status, error)
        outcome |= {"seconds": round(time.monotonic() - began_s, 1), "limit_s": round(limit_s, 1)}
        write_json(run.out / f"section-{section.number}.json", outcome)
        page.write_page(run.out)
    return outcome


def run_in_process(section: Section, scope: Scope, limit_s: float) -> tuple[Status, str]:
    """Run a section in a process whose output goes to log.txt; return its status and error."""
    settings = {name: value for name, value in asdict(scope).items() if name != "started_s"}
    command = [sys.executable, "-m", "benchmarks.proof.run_section", section.module]
    command.append(json.dumps(settings, default=str))
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    end_s = time.monotonic() + limit_s
    log = scope.out / "log.txt"
    log.unlink(missing_ok=True)
    name = f"section {section.number}"
    child = ChildProcess(ProgramSpec(name, tuple(command), log, {"PYTHONPATH": path}))
    try:
        while not child.has_ended() and time.monotonic() < end_s:
            child.read_lines()
            time.sleep(POLL_S)
        if not child.has_ended():
            return "out of time", f"ended by force after {limit_s:.0f} s"
    finally:
        child.kill()
        child.read_lines()
    if child.code == 0:
        return "complete", ""
    last = next((line for line in reversed(child.last_lines) if line.strip()), "it printed nothing")
    if child.code < 0:
        return (
            "killed",
            f"the process {child.exit_reason()} (the kernel kills when memory is short); last"
            f" line: {last}",
        )
    return "failed", f"the process {child.exit_reason()}; last line: {last}"


def outcome_of(run: Run, section: Section, folder: Path, status: Status, error: str) -> Outcome:
    """Return the outcome of a section that has ended, with what it recorded before a failure."""
    file = folder / RESULT_FILE
    result = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if status == "complete" and not result.get("complete"):
        status, error = "failed", "the process ended without a result"
    error = result.get("error") or error
    outcome = {
        "section": section.number,
        "title": result.get("title", section.title),
        "status": status,
        "error": error,
        "run": run.settings() | {"time": datetime.now().isoformat(" ", "seconds")},
        **{name: result.get(name, []) for name in ("lines", "figures")},
        "data": result.get("data", {}),
    }
    if status != "complete":
        claim = f"section {section.number} ({outcome['title']}) runs to its end"
        outcome["figures"].append(
            asdict(Figure(claim, f"{status}: {error}", "complete", "not met"))
        )
    return outcome


def discard_results(run: Run) -> None:
    """Remove the results of earlier runs with other GPUs or settings."""
    for file in run.out.glob("section-*.json"):
        try:
            earlier = json.loads(file.read_text(encoding="utf-8"))["run"]
        except (ValueError, KeyError, TypeError):  # damaged
            earlier = {}
        if {name: earlier.get(name) for name in run.settings()} != run.settings():
            file.unlink()


def failed(outcome: Outcome) -> bool:
    """Return whether the section failed or one of its claims is not met."""
    return outcome["status"] != "complete" or any(
        figure["verdict"] == "not met" for figure in outcome["figures"]
    )


def summary(outcome: Outcome) -> str:
    """Return one line about a section for the console."""
    verdicts = [figure["verdict"] for figure in outcome["figures"]]
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in ("met", "not met", "not shown"))
    error = f": {outcome['error']}" if outcome["error"] else ""
    return f"{outcome['status']} after {outcome['seconds']:.0f} s{error}; claims: {counts}"
