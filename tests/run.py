"""Run the test modules in several processes: `python -m tests.run [MODULE ...] [--jobs N] [--quick]
[--times]`.

Each process imports TensorFlow once and takes module after module, the slowest first. A module
stays in one process, so that its tests share traced models. If a process dies, its module fails and
another process goes on; one that hangs is aborted and shows where.

Where there are GPUs, the modules that import `tests.real_gpus` run last, in one process that sees
them; all others simulate GPUs. TEST_GPUS=0 hides the GPUs from all modules.
"""

import argparse
import ast
import contextlib
import faulthandler
import gc
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from myxtts.base.processes import visible_gpus
from tests.long import LONG

ROOT = Path(__file__).parents[1]
TIMES = Path(__file__).with_name("times.json")  # seconds of each module, as --times measured them
SLOWEST_TESTS = 30  # how many --times lists
LAST_LINES = 100  # how many are shown of what a process printed before it died
# Of a module; the slowest one takes 71 s on idle cores, 210 s on busy ones.
LIMIT_S = 7200.0 if LONG else 1200.0
END_S = 10.0  # from the SIGINT of a process to its SIGKILL
SHARED_RUN = "whole_run()"  # of tests.tiny: a process trains it once, in 20 s
FAILED = ("failures", "errors", "unexpectedSuccesses")
COUNTS = (*FAILED, "skipped", "expectedFailures")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run", description="Run the test suite.")
    add, flag = parser.add_argument, {"action": "store_true"}
    modules_help = "such as test_step or devicefeed.test_feed (default: all)"
    add("modules", nargs="*", metavar="MODULE", help=modules_help)
    add("--jobs", type=int, default=2, metavar="N", help="number of processes (default: 2)")
    add("--quick", help="only the modules that do not import TensorFlow", **flag)
    add("--times", help=f"list the slowest tests and rewrite {TIMES.name}", **flag)
    add("--work", help=argparse.SUPPRESS, **flag)
    options = parser.parse_args()
    modules = [*dict.fromkeys(options.modules)] or all_modules()
    if unknown := [module for module in modules if not path_of_module(module).is_file()]:
        parser.error(f"tests has no module {', '.join(unknown)}; give names such as test_step")
    if options.work:
        return work(modules)
    if options.quick:
        modules = [module for module in modules if not imports_tensorflow(f"tests.{module}")]
    # A background job of a shell ignores it, and so would tests.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    start, suite = time.perf_counter(), Suite(modules, options.quick)
    try:
        suite.run(options.jobs)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if options.times:
        suite.write_times()
    return 0 if suite.summarise(time.perf_counter() - start) else 1


class Suite:
    def __init__(self, modules: list[str], quick: bool):
        self._modules, self._quick = modules, quick
        self._waiting: list[str] = []
        self._shares_run = {module: SHARED_RUN in _source(module) for module in modules}
        self._owner: int | None = None  # the thread whose process trained the shared run
        self._lock = threading.Lock()
        self._processes: list[subprocess.Popen] = []
        self._stopped = False
        self._reports: dict[str, dict] = {}

    def run(self, jobs: int) -> None:
        on_gpus = gpu_modules(self._modules)
        others = [module for module in self._modules if module not in on_gpus]
        try:
            self._run_group(others, jobs, gpus="0")
            self._run_group(on_gpus, 1, gpus="1")
        finally:
            self._end_processes()

    def _run_group(self, modules: list[str], jobs: int, gpus: str) -> None:
        times = json.loads(TIMES.read_text())
        # The slowest comes last.
        self._waiting = sorted(modules, key=lambda module: times.get(module, float("inf")))
        self._owner = None
        arguments = (modules, os.environ | {"TEST_GPUS": gpus})
        settings = {"target": self._run_modules, "args": arguments, "daemon": True}
        threads = [threading.Thread(**settings) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run_modules(self, modules: list[str], environ: dict[str, str]) -> None:
        command = [sys.executable, "-m", "tests.run", "--work", *modules]
        settings = {"cwd": ROOT, "env": environ, "text": True}
        settings |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        # A signal to its group reaches the processes of its tests.
        settings["start_new_session"] = True
        while self._candidates() and not self._stopped:
            with tempfile.TemporaryFile("w+", errors="replace") as log:
                process = subprocess.Popen(command, stderr=log, **settings)
                self._processes.append(process)
                self._feed(process, log)

    def _feed(self, process: subprocess.Popen, log: IO[str]) -> None:
        """Have a process run modules until none is left or it dies."""
        module = None
        with contextlib.suppress(IndexError, BrokenPipeError), process.stdin:
            while True:
                module = self._take()
                with contextlib.suppress(BrokenPipeError):
                    print(module, file=process.stdin, flush=True)
                answer = _report_of(process)
                if not answer:
                    break
                self._add(module, {"process": process.pid, **json.loads(answer)})
        if process.wait() and module is not None and not self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what its tests started
            self._add(module, {"process": process.pid, **_death(process.returncode, log)})

    def _take(self) -> str:
        """Take the slowest module that this thread's process may run, or raise IndexError."""
        with self._lock:
            module = self._candidates()[-1]
            if self._shares_run[module]:
                self._owner = threading.get_ident()
            self._waiting.remove(module)
            return module

    def _candidates(self) -> list[str]:
        """Return the modules that wait, without those whose shared run is in another process."""
        may_share = self._owner in (None, threading.get_ident())
        return [module for module in self._waiting if may_share or not self._shares_run[module]]

    def _add(self, module: str, report: dict) -> None:
        if self._quick and report["tensorflow"]:
            report["counts"]["errors"] += 1
            report["output"] += f"ERROR: {module} imported TensorFlow, which no quick module may do"
        self._reports[module] = report
        failed = "  FAILED" if any(report["counts"][name] for name in FAILED) else ""
        line = (
            f"{report['seconds']:7.1f} s, {report['cpu_s']:5.1f} s of CPU time,"
            f" {report['peak_mib']:5,.0f} MiB, {report['ran']:3d} tests: {module}{failed}"
        )
        print("\n".join(filter(None, (line, report["output"]))), flush=True)

    def _end_processes(self) -> None:
        """End the processes that still run, with those that their tests started."""
        self._stopped = True
        running = [process for process in self._processes if process.poll() is None]
        for number in (signal.SIGINT, signal.SIGKILL):
            for process in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)

    def summarise(self, seconds: float) -> bool:
        """Print the totals; return whether all tests passed."""
        reports = self._reports.values()
        counts = {name: sum(report["counts"][name] for report in reports) for name in COUNTS}
        ran, passed = (sum(report[name] for report in reports) for name in ("ran", "passed"))
        not_run = sorted(set(self._modules).difference(self._reports))
        if not_run:
            print(f"ERROR: no process reported {', '.join(not_run)}")
        failed = sum(counts[name] for name in FAILED) + len(not_run)
        details = ", ".join(f"{name}={count}" for name, count in counts.items() if count)
        print("-" * 70 + f"\nRan {ran} tests in {seconds:.3f}s\n")
        print(("FAILED" if failed else "OK") + (f" ({details})" if details else ""))
        print(f"{passed} passed, {failed} failed, {counts['skipped']} skipped")
        for process in sorted({report["process"] for report in reports}):
            of_process = [report for report in reports if report["process"] == process]
            peak_mib = max(report["peak_mib"] for report in of_process)
            cpu_s = sum(report["cpu_s"] for report in of_process)
            modules = f"process {process}: {len(of_process)} modules"
            print(f"{modules}, peak memory {peak_mib:,.0f} MiB, {cpu_s:,.0f} s of CPU time")
        return not failed

    def write_times(self) -> None:
        """List the slowest tests and record the seconds of each module."""
        test_s, times = {}, json.loads(TIMES.read_text())
        for module, report in self._reports.items():
            test_s |= report["test_s"]
            times[module] = round(report["seconds"], 1)
        for test in sorted(test_s, key=test_s.__getitem__, reverse=True)[:SLOWEST_TESTS]:
            print(f"{test_s[test]:7.1f} s  {test.removeprefix('tests.')}")
        TIMES.write_text(json.dumps(times, indent=1, sort_keys=True) + "\n")


def _report_of(process: subprocess.Popen) -> str:
    """Return the report on the module of a process; "" if it dies. It is aborted after LIMIT_S."""
    # Faulthandler shows where it hangs.
    abort = threading.Timer(LIMIT_S, process.send_signal, (signal.SIGABRT,))
    abort.daemon = True
    abort.start()
    try:
        return process.stdout.readline()
    finally:
        abort.cancel()


def _death(code: int, log: IO[str]) -> dict:
    """Return the report of a module in which its process died."""
    log.seek(0)
    last = "\n".join(log.read().splitlines()[-LAST_LINES:])
    numbers = dict.fromkeys(("seconds", "ran", "passed", "peak_mib", "cpu_s", "tensorflow"), 0)
    counts = dict.fromkeys(COUNTS, 0) | {"errors": 1}
    output = f"ERROR: the process died with exit code {code}:\n{last}"
    return numbers | {"output": output, "test_s": {}, "counts": counts}


def work(modules: list[str]) -> int:
    """Run the modules that lines of stdin name, and report each in a line of JSON."""
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tests print
    faulthandler.enable()
    # All modules are imported before the first one runs, because some configure TensorFlow's
    # devices.
    load = unittest.defaultTestLoader.loadTestsFromName
    suites = {module: load(f"tests.{module}") for module in modules}
    # So the collector does not walk through TensorFlow's modules again and again: 10 % of the
    # processor time.
    gc.freeze()
    # Tracing makes many objects and few circles. A collection every 700 objects, as is usual, takes
    # another 9 %.
    gc.set_threshold(10_000)
    for line in sys.stdin:
        result = ModuleResult()
        suites.pop(line.strip()).run(result)
        # models and graphs of this module; those that remain are cached for further modules
        gc.collect()
        gc.freeze()
        print(json.dumps(result.report()), file=reports, flush=True)
    return 0


class ModuleResult(unittest.TextTestResult):
    """The result of one module, with the seconds of each test."""

    def __init__(self):
        super().__init__(unittest.runner._WritelnDecorator(io.StringIO()), False, verbosity=0)
        self.start_s, self.start_cpu_s = time.perf_counter(), _cpu_s()
        self.passed, self.test_s = 0, {}

    def startTest(self, test):
        super().startTest(test)
        self.test_s[test.id()] = -time.perf_counter()

    def stopTest(self, test):
        super().stopTest(test)
        self.test_s[test.id()] += time.perf_counter()

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1

    def report(self) -> dict:
        self.printErrors()
        return {
            "seconds": time.perf_counter() - self.start_s,
            "test_s": self.test_s,
            "ran": self.testsRun,
            "passed": self.passed + len(self.expectedFailures),
            "counts": {name: len(getattr(self, name)) for name in COUNTS},
            "output": self.stream.getvalue().strip("\n"),
            "tensorflow": "tensorflow" in sys.modules,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "cpu_s": _cpu_s() - self.start_cpu_s,
        }


def _cpu_s() -> float:
    """Return the processor time of this process and of the processes that it waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def all_modules() -> list[str]:
    """Return the modules of this folder, and those that go with a copy of the library."""
    of_library = (f"devicefeed.{path.stem}" for path in TIMES.parent.glob("devicefeed/test_*.py"))
    return sorted([*of_library, *(path.stem for path in TIMES.parent.glob("test_*.py"))])


def gpu_modules(modules: list[str]) -> list[str]:
    """Return the modules that use real GPUs, in a process of their own: others simulate them."""
    if os.environ.get("TEST_GPUS") == "0" or not visible_gpus():
        return []
    imports = {module: [*_imports(ast.parse(_source(module)))] for module in modules}
    return [module for module in modules if "tests.real_gpus" in imports[module]]


def _source(module: str) -> str:
    return path_of_module(module).read_text(encoding="utf-8")


def path_of_module(module: str) -> Path:
    return TIMES.parent.joinpath(*module.split(".")).with_suffix(".py")


def imports_tensorflow(module: str) -> bool:
    """Return whether the import of a module imports TensorFlow, directly or through others."""
    seen, names = set(), [module]
    while names:
        name = names.pop()
        if name.partition(".")[0] in ("tensorflow", "keras"):
            return True
        path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
        if name not in seen and path.is_file():
            names += _imports(ast.parse(path.read_text(encoding="utf-8")))
        seen.add(name)
    return False


def _imports(node: ast.AST) -> Iterator[str]:
    """Yield the names that a module imports as it is imported; functions import later."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (child.module, *(f"{child.module}.{alias.name}" for alias in child.names))
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _imports(child)


if __name__ == "__main__":
    sys.exit(main())
