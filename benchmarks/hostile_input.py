"""Hostile input at volume: mutated audio, metadata, configurations, checkpoints and texts, through
the program itself.

    python benchmarks/hostile_input.py                                    # all 7,500 cases
    python benchmarks/hostile_input.py --kinds yaml texts --cases 200 --seed 7
    python benchmarks/hostile_input.py --repeat metadata:1234             # one case, with its files
    python benchmarks/hostile_input.py --strace --json cases.json

A case is a pure function of (seed, kind, number). It calls what the commands call, in a worker
process that runs case after case, and must end within 2 s in success or in a user error: exit code
0 or 2, one message on stderr without traceback and without control characters, less than 512 MiB of
memory on top, and no file opened outside of its corpus and run folders
(benchmarks/hostile/case.py). The 2 s are without the time in which other processes had the
processor; a case that is slower runs again once. A worker that hangs in C code or dies is replaced,
and that case has failed.

What Python opens is seen by an audit hook. With --strace, also what C libraries open.
"""

import argparse
import contextlib
import gc
import json
import math
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.hostile.case import (
    HANG_S,
    KINDS,
    MARK,
    OPENED,
    PROGRAM,
    Outcome,
    make_place,
    prepare,
    run_case,
)

ADDRESS_SPACE = 4 << 30  # bytes that a worker may reserve on top of what it has after its warm-up
KILL_S = 20 * HANG_S  # a worker that has reported nothing for so long hangs in C code
START_S = 300.0  # until the first report of a worker, which imports TensorFlow for some kinds
WARM_UP = 2  # cases of which a worker reports nothing: they import and cache what all cases need
_OPENED = re.compile(r"\b(?:open|openat|creat)(?:\(| resumed>).*= \d+<(.*)>$")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="by default all"
    )
    parser.add_argument("--cases", type=int, help="of each kind; by default 7,500 in all")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (default 0)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", metavar="KIND:NUMBER", help="run one case, and keep its files")
    parser.add_argument(
        "--strace", action="store_true", help="see what C libraries open, too; needs strace"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcome of each case")
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="end after a time, with a report of the cases so far",
    )
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.repeat and not re.fullmatch(rf"({'|'.join(KINDS)}):\d+", options.repeat):
        parser.error(
            f"--repeat {options.repeat} is no case; give one such as {options.kinds[0]}:17"
        )
    if options.repeat:
        return repeat(options.repeat, options.seed)
    cases = [
        (kind, number)
        for kind in options.kinds
        for number in numbers_of(kind, options.first, options.cases)
    ]
    if options.work:
        index, folder = options.work
        return work(cases[int(index) :], Path(folder), options.seed)
    if options.strace and shutil.which("strace") is None:
        parser.error("--strace needs strace, which is not installed")
    started_s = time.perf_counter()
    outcomes = list(run_cases(cases, options.strace, started_s + 60 * options.minutes))
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    print(report(outcomes, options.seed, time.perf_counter() - started_s))
    return int(any(outcome.faults for outcome in outcomes))


def numbers_of(kind: str, first: int, count: int | None) -> range:
    return range(first, first + (count or KINDS[kind][0]))


def report(outcomes: Sequence[Outcome], seed: int, elapsed_s: float) -> str:
    """Return a table of the kinds, and the failures by kind with the numbers that repeat them."""
    lines = [
        "| kind | cases | done | user errors | failures | slowest | most memory |",
        "|---|---:|---:|---:|---:|---|---|",
    ]
    failures: dict[tuple[str, str], list[int]] = defaultdict(list)
    for kind in dict.fromkeys(outcome.kind for outcome in outcomes):
        of_kind = [outcome for outcome in outcomes if outcome.kind == kind]
        codes = Counter(outcome.code for outcome in of_kind if not outcome.faults)
        slowest, largest = (
            max(of_kind, key=key) for key in (lambda o: o.seconds, lambda o: o.memory_mib)
        )
        lines.append(
            f"| {kind} | {len(of_kind):,} | {codes[0]:,} | {codes[2]:,} |"
            f" {sum(bool(o.faults) for o in of_kind)} | {slowest.seconds:.2f} s ({slowest.number})"
            f" | {largest.memory_mib:.0f} MiB ({largest.number}) |"
        )
        for outcome in of_kind:
            for fault in outcome.faults:
                failures[kind, group_of(fault)].append(outcome.number)
    lines.append(f"\n{len(outcomes):,} cases of seed {seed} in {elapsed_s:.0f} s")
    for (kind, fault), numbers in sorted(
        failures.items(), key=lambda item: (item[0][0], -len(item[1]))
    ):
        lines.append(
            f"\n{kind}, {len(numbers)} x {fault}\n    --seed {seed} --repeat {kind}:{numbers[0]}"
        )
        lines += [f"    also {', '.join(map(str, numbers[1:20]))}"] * (len(numbers) > 1)
    return "\n".join(lines)


def group_of(fault: str) -> str:
    """Return a fault without what differs from case to case: numbers, and texts in quotes."""
    return re.sub(r"(?<!:)\b\d[\d.,]*", "N", re.sub(r"'.*'|\".*\"", "'…'", fault))


def repeat(case: str, seed: int) -> int:
    """Run one case here, print its outcome, and write its files again to look at."""
    kind, _, number = case.partition(":")
    folder = Path(tempfile.mkdtemp(prefix="hostile-input-"))
    _warm_up(kind, folder)
    outcome = run_case(kind, int(number), seed, folder, in_worker=True)
    print(json.dumps(asdict(outcome), indent=1, ensure_ascii=True))
    prepare(kind, int(number), seed, make_place(folder))
    print(f"the files of the case are in {folder / 'case'}")
    return int(bool(outcome.faults))


def run_cases(cases: Sequence[tuple[str, int]], is_traced: bool, end_s: float) -> Iterator[Outcome]:
    """Run cases in worker processes, one after another; each takes over where the one
    before died.
    """
    index = 0
    while index < len(cases) and time.perf_counter() < end_s:
        with tempfile.TemporaryDirectory(
            prefix="hostile-input-", ignore_cleanup_errors=True
        ) as folder:
            command = [sys.executable, "-B", *sys.argv, "--work", str(index), folder]
            trace = Path(folder) / "trace"
            if is_traced:
                traced = [
                    "strace",
                    "-f",
                    "-y",
                    "-qq",
                    "--seccomp-bpf",
                    "-s",
                    "4096",
                    "-o",
                    str(trace),
                ]
                command = [*traced, "-e", "trace=open,openat,creat", *command]
            outcomes = list(_outcomes_of_worker(command, cases[index:], folder, end_s))
            if is_traced:
                add_opens(outcomes, trace, folder)
        yield from outcomes
        index += len(outcomes)


def _outcomes_of_worker(
    command: list[str], cases: Sequence[tuple[str, int]], folder: str, end_s: float
) -> Iterator[Outcome]:
    """Yield the outcomes that a worker reports, and if it dies or hangs, one for the case that it
    was at.
    """
    with open(Path(folder) / "log", "w+b") as log:
        worker = subprocess.Popen(  # unbuffered, because `select` does not see what a buffer holds
            command,
            bufsize=0,
            stdout=subprocess.PIPE,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        done, limit_s = 0, START_S
        try:
            while line := _line_of(
                worker.stdout, min(limit_s, max(end_s - time.perf_counter(), 0.0))
            ):
                yield Outcome(**json.loads(line))
                done, limit_s = done + 1, KILL_S
            is_over = time.perf_counter() >= end_s
            if line is not None:
                worker.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)  # also what strace would leave behind
            code = worker.wait()
        if done < len(cases) and not is_over:
            log.seek(0)
            last = log.read()[-300:].decode(errors="replace")
            fault = (
                f"hang: killed after {limit_s:g} s"
                if line is None
                else f"crash: exit code {code}, {last!r}"
            )
            yield Outcome(*cases[done], faults=[fault])


def _line_of(pipe, seconds: float) -> bytes | None:
    """Return the next line; empty at the end, None after a time without a line."""
    ready, _, _ = select.select([pipe], [], [], seconds)
    return pipe.readline() if ready else None


def work(cases: Sequence[tuple[str, int]], folder: Path, seed: int) -> int:
    """Run cases in this process, and report each in a line of JSON."""
    reports = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print
    warm: set[str] = set()
    for kind, number in cases:
        if kind not in warm:
            _warm_up(kind, folder)
            warm.add(kind)
        outcome = run_case(kind, number, seed, folder, in_worker=True)
        print(json.dumps(asdict(outcome)), file=reports)
    return 0


def _warm_up(kind: str, folder: Path) -> None:
    """Run some cases that nobody counts, without the limit on the address space, and set it
    again.
    """
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for number in range(WARM_UP):
        run_case(kind, number, -1, folder)
    gc.freeze()  # or the collection before each case would go through all objects of TensorFlow
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESS_SPACE, resource.RLIM_INFINITY))


def add_opens(outcomes: Sequence[Outcome], trace: Path, folder: str) -> None:
    """Add to each outcome what its process opened outside of its folders, by the trace of its
    system calls.
    """
    by_case = {(outcome.kind, outcome.number): outcome for outcome in outcomes}
    case = os.path.join(os.path.realpath(folder), "case")
    allowed = tuple(f"{case}/{name}" for name in OPENED)
    outcome: Outcome | None = None
    for line in trace.read_text(errors="replace").splitlines():
        if mark := re.search(rf'"{MARK}/(\w+)/(\w+)"', line):
            outcome = by_case.get((mark[1], int(mark[2]))) if mark[2].isdecimal() else None
        elif outcome is not None and (opened := _OPENED.search(line)):
            path = opened[1]
            is_outside = path.startswith(f"{case}/outside") or not path.startswith((*PROGRAM, case))
            if is_outside and not path.startswith(allowed):
                fault = f"opened, by strace: {path[-200:]!r}"
                if fault not in outcome.faults:
                    outcome.faults.append(fault)


if __name__ == "__main__":
    sys.exit(main())
