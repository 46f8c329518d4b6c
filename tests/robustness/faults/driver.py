"""Runs cases in some processes at a time, each a fork of this one."""

import atexit
import contextlib
import gc
import importlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import myxtts.commands.train
import myxtts.run.page  # noqa: F401 - imports TensorFlow, for all forks
from fakes.toy_models import toy_models
from tests.robustness.faults import children
from tests.robustness.faults.case import Result, Settings, draw
from tests.robustness.faults.lab import Lab
from tests.robustness.faults.trial import Trial

# A program hangs after LIMIT_FACTOR times the seconds of an undisturbed run.
LEAST_LIMIT_S, LIMIT_FACTOR = 60.0, 20.0


def run_cases(settings: Settings) -> Result:
    """Run the undisturbed run and the cases; return outcomes. Folders of failures are kept."""
    with toy_models():
        lab = Lab(settings.folder, children)
        record = settings.folder / "record.json"
        lab.open(lambda: _record_imports(record))
        _import_recorded(record)
        lab.repeat()
        limit_s = max(LEAST_LIMIT_S, LIMIT_FACTOR * lab.seconds)
        opened_s = time.monotonic()
        cases = _run_cases(settings, lab, limit_s, opened_s + 60.0 * settings.minutes)
    if not any(case["failures"] for case in cases) and settings.repeat is None:
        shutil.rmtree(settings.folder)
    return {
        **{"seed": settings.seed, "scenarios": list(settings.scenarios), "jobs": settings.jobs},
        **{"limit_s": round(limit_s, 1), "cases": cases},
        "undisturbed_s": round(lab.seconds, 1),
        "undisturbed_cpu_s": round(lab.cpu_s, 1),
        "seconds": round(time.monotonic() - opened_s, 1),
        "folder": str(settings.folder),
    }


def _record_imports(path: Path) -> None:
    """Record in a file, at the end of this process, what it imports from now on: late imports,
    which each fork would repeat.
    """
    before = set(sys.modules)
    atexit.register(lambda: path.write_text(json.dumps(sorted(set(sys.modules) - before))))


def _import_recorded(path: Path) -> None:
    for name in json.loads(path.read_text()):
        # Of a module that cannot be imported by itself: its importer does it.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that the collector does not copy shared memory in each fork


def numbers_of(settings: Settings) -> Iterator[int]:
    """Yield the numbers of the cases that the settings ask for."""
    if settings.repeat is not None:
        yield settings.repeat
        return
    drawn = ((number, draw(settings.seed, number)[0]) for number in count())
    wanted = (number for number, scenario in drawn if scenario.name in settings.scenarios)
    yield from islice(wanted, settings.cases or None)


def _run_cases(settings: Settings, lab: Lab, limit_s: float, end_s: float) -> list[dict]:
    files = [settings.folder / f"cases-{job}.jsonl" for job in range(settings.jobs)]
    runners = [_fork(settings, lab, limit_s, end_s, job, file) for job, file in enumerate(files)]
    try:
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in runners]
    except BaseException:  # Ctrl-C
        for pid in runners:
            os.kill(pid, signal.SIGKILL)  # its programs die with it
        raise
    assert not any(codes), f"the processes that run the cases ended with {codes}"
    lines = (line for file in files if file.exists() for line in file.read_text().splitlines())
    return sorted(map(json.loads, lines), key=lambda case: case["number"])


def _fork(settings: Settings, lab: Lab, limit_s: float, end_s: float, job: int, file: Path) -> int:
    """Start a process that runs each `jobs`-th case, and return its ID."""
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    code = 1
    try:
        children.die_with(parent)
        children.adopt_orphans()
        for number in islice(numbers_of(settings), job, None, settings.jobs):
            if time.monotonic() >= end_s:
                break
            case = run_case(settings, lab, number, limit_s)
            with open(file, "a") as lines:
                lines.write(json.dumps(case) + "\n")
        code = 0
    finally:
        if code:
            traceback.print_exc()  # os._exit prints nothing
        os._exit(code)


def run_case(settings: Settings, lab: Lab, number: int, limit_s: float) -> dict:
    """Run one case; return its outcome."""
    scenario, source = draw(settings.seed, number)
    folder = settings.folder / f"case-{number}"
    folder.mkdir()
    trial, start_s = Trial(lab, folder, source, limit_s), time.monotonic()
    try:
        scenario.run(trial)
    except Exception:  # a defect of the scenario is a finding, and the next case runs
        trial.fail("chaos test", traceback.format_exc())
    for child in trial.children:
        child.kill()
    lab.launcher.end_orphans(())
    if not trial.failures and settings.repeat is None:
        shutil.rmtree(folder, ignore_errors=True)
    for failure in trial.failures:
        print(f"case {number:<6} {scenario.name}: {failure.kind}: {failure.text[:300]}", flush=True)
    return {
        **{"number": number, "scenario": scenario.name, "steps": trial.steps},
        **{"faults": trial.faults, "processes": len(trial.children)},
        "seconds": round(time.monotonic() - start_s, 1),
        "cpu_s": round(sum(child.cpu_s for child in trial.children), 1),
        "failures": [failure._asdict() for failure in trial.failures],
    }
