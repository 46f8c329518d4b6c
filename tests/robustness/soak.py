"""Train for hours at tiny size, and see whether memory, threads, descriptors, disk use or the time
of a step grow.

    python tests/robustness/soak.py --minutes 120 --json soak.json

One run trains the network `tiny` on a demo corpus, on two simulated GPUs, with validation and
samples beside the training, and checkpoints. Nine tenths of the time belong to its first process,
since a slope needs a long one. Then it is stopped by SIGTERM and resumed, three times by default.

Every few seconds the process is sampled: the memory that it has in use and its anonymous memory,
which it writes itself (see `heap.py`), resident memory (RSS), threads, file descriptors, the size
of the run folder and of its checkpoints, and the time of a step since its last report. A checkpoint
in the making comes and goes, so of the checkpoints' sizes the least of each minute counts.

The slopes are those of the first process after a warm-up of a quarter of its time and 60 steps, by
ordinary least squares, with 95 % intervals (`slope.py`). A limit is met if the whole interval is
below it, not met if it is above, and otherwise not shown. Less than 30 minutes after the warm-up
are too short for a verdict, since memory still settles. Linux only.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from myxtts.base.console import report_errors
from myxtts.base.errors import TrainingError
from myxtts.base.files import check_writable, make_folder, write_json
from myxtts.base.processes import ChildProcess, ProgramSpec
from myxtts.config.parser import bounded
from myxtts.corpus.demo_corpus import make_demo_corpus
from myxtts.devicefeed.errors import PlacementError
from tests.robustness.heap import EVERY_S
from tests.robustness.slope import Slope, fit

SCRIPT = (str(Path(__file__).with_name("heap.py").resolve()),)
UTTERANCES, ENDLESS = 24, 10_000_000
FIRST_SHARE = 0.9  # of the time, for the first process
# A resumed process starts TensorFlow and traces before it trains and can be stopped.
LEAST_RESUMED_S = 60.0
WARM_UP = 0.25  # of a process' time: TensorFlow's memory grows while shapes are new
# Until all checkpoints that are kept are there, and validation and samples have run.
WARM_UP_STEPS = 60
LEAST_S = 1800.0  # after the warm-up, for a verdict
LEAST_SAMPLE_S, SAMPLES = 2.0, 1500
MINUTE_S = 60.0
POLL_S = 0.2
# Of /proc; a zombie has no VmRSS.
ENDED = (FileNotFoundError, ProcessLookupError, PermissionError, KeyError)
STOP_S = 300.0  # from SIGTERM to the end, with the last checkpoint; a machine may be busy
MIB = 1 << 20
MEGABYTE = 1e6 / MIB
SETTINGS = (
    "--simulate-gpus 2 --data-gpu 0 --model-gpu 1 --model-size tiny --text-frontend characters"
    f" --batch-size 4 --buckets 2 --validation-fraction 0.15 --ode-steps 1 --max-steps {ENDLESS}"
    " --log-every 5 --validate-every 20 --sample-every 40"
    " --checkpoint-every 20 --keep-checkpoints 2"
).split()


class Sample(NamedTuple):
    """What a process has at a time."""

    process: int  # 0 for the first one of the run, 1 for the one that resumed it
    seconds: float  # since the start of the process
    in_use_mib: float  # mean since the last sample; 0 before the first line
    anonymous_mib: float  # as above
    rss_mib: float
    threads: int
    descriptors: int
    run_mib: float  # of files
    checkpoints_mib: float  # of files
    step: int
    step_s: float  # of the last report; 0 before it


class Quantity(NamedTuple):
    """A figure of the table."""

    name: str  # of the attribute of Sample
    label: str
    limit: float | None = None  # of its slope an hour; None without one
    relative: bool = False  # the slope is divided by the mean
    least: bool = False  # the least of each minute counts


QUANTITIES = (
    Quantity("in_use_mib", "memory in use, MiB", MEGABYTE),
    Quantity("anonymous_mib", "memory, anonymous, MiB", MEGABYTE),
    Quantity("rss_mib", "memory, RSS, MiB"),
    Quantity("threads", "threads", 0.5),
    Quantity("descriptors", "file descriptors", 0.5),
    Quantity("checkpoints_mib", "checkpoints on the disk, MiB", 1.0, least=True),
    Quantity("run_mib", "run folder, MiB (samples and curves grow)"),
    Quantity("step_s", "time of a step", 0.05, relative=True),
)


def main() -> int:
    options = parse()
    if sys.platform != "linux":
        raise PlacementError("the soak test reads /proc of Linux. Run it in a container.")
    check_writable("--json", options.json)
    if options.out is not None:
        make_folder(options.out, "--out")
    folder = Path(tempfile.mkdtemp(prefix="myxtts-soak-", dir=options.out)).resolve()
    make_demo_corpus(folder / "corpus", UTTERANCES, ["en"], speakers=2, seed=options.seed)
    seconds = 60.0 * options.minutes
    every_s = max(LEAST_SAMPLE_S, seconds / SAMPLES)
    samples: list[Sample] = []
    later_s = max((1.0 - FIRST_SHARE) * seconds / max(options.resumes, 1), LEAST_RESUMED_S)
    first_s = FIRST_SHARE * seconds if options.resumes else seconds
    for process, process_s in enumerate([first_s, *[later_s] * options.resumes]):
        samples += train(folder, process, process_s, every_s, options.seed)
        last = samples[-1]
        print(f"process {process}: {last.seconds / 60:.1f} minutes, up to step {last.step}")
        sys.stdout.flush()
    rows = table(samples)
    print("\n".join(describe(samples, rows)))
    if options.json is not None:
        content = {"minutes": options.minutes, "every_s": every_s, "rows": rows}
        write_json(options.json, content | {"samples": [sample._asdict() for sample in samples]})
    shutil.rmtree(folder)
    return int(any(row["verdict"] == "not met" for row in rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="Exit code: 1 if a limit is not met, else 0; 2 for wrong use.",
    )
    add, count = parser.add_argument, bounded(int, 0)
    add("--minutes", type=bounded(float, 0.5, 10_000.0), default=120.0, help="default 120")
    add("--resumes", metavar="N", type=bounded(int, 0, 100), default=3, help="default 3")
    add("--seed", type=count, default=0, help="of the corpus and the run (default 0)")
    add("--json", metavar="FILE", type=Path, help="write all samples and slopes")
    add("--out", metavar="DIR", type=Path, help="parent of the run's folder")
    return parser.parse_args()


def train(folder: Path, process: int, seconds: float, every_s: float, seed: int) -> list[Sample]:
    """Train or resume the run for some time, and stop it; return the samples. The process must end
    as a stopped one ends.
    """
    run, heap = folder / "runs" / "soak", folder / f"heap-{process}.txt"
    places = ["--run", run.name, "--runs-dir", str(run.parent)]
    places += ["--train-data", str(folder / "corpus"), "--seed", str(seed)]
    command = [sys.executable, *SCRIPT, str(heap), *places, *SETTINGS]
    if process:
        command.append("--resume")
    samples, start_s = [], time.monotonic()
    environ = {"CUDA_VISIBLE_DEVICES": ""}
    name = f"process {process}"
    child = ChildProcess(ProgramSpec(name, tuple(command), folder / "log.txt", environ))
    try:
        for number in range(1, round(seconds / every_s) + 1):
            if wait_for_end(child, start_s + number * every_s):
                break
            with contextlib.suppress(*ENDED):
                running_s = time.monotonic() - start_s
                samples.append(sample_of(child.pid, run, heap, process, running_s, every_s))
        child.send_signal(signal.SIGTERM)
        wait_for_end(child, time.monotonic() + STOP_S)
    finally:
        child.kill()
    if child.code not in (-signal.SIGTERM, 128 + signal.SIGTERM):
        report = child.failure_report()
        raise TrainingError(f"process {process} of the soak test {report}\nSee {folder}.")
    if child.code == -signal.SIGTERM or not samples or not samples[-1].step:
        raise TrainingError(f"process {process} ended without a report. Give more --minutes.")
    return samples


def wait_for_end(child: ChildProcess, end_s: float) -> bool:
    """Read the output of a process until it ends or a time has passed; return whether it ended."""
    while not child.has_ended() and time.monotonic() < end_s:
        child.read_lines()
        time.sleep(POLL_S)
    return child.has_ended()


def sample_of(
    pid: int, run: Path, heap: Path, process: int, seconds: float, every_s: float
) -> Sample:
    """Sample a process and its run folder; raises one of ENDED if it has ended.

    Args:
        heap: file of `tests/robustness/heap.py`.
        seconds, every_s: since the start of the process, and since the last sample.
    """
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    # Memory is in KiB.
    status = {words[0]: words[1] for words in lines if len(words) > 1}
    in_use, anonymous = means_of_last_lines(heap, max(round(every_s / EVERY_S), 1))
    memory = in_use / MIB, anonymous / MIB, int(status["VmRSS:"]) / 1024
    counts = int(status["Threads:"]), len(os.listdir(f"/proc/{pid}/fd"))
    sizes = size_of(run) / MIB, size_of(run / "checkpoints") / MIB
    report = last_report(run / "metrics.jsonl")
    return Sample(process, round(seconds, 1), *memory, *counts, *sizes, *report)


def means_of_last_lines(file: Path, count: int) -> list[float]:
    """Return the means of the two numbers in the last lines of a file; 0 without any."""
    with contextlib.suppress(FileNotFoundError):
        if lines := file.read_text().splitlines()[-count:]:
            columns = zip(*map(str.split, lines), strict=True)
            return [fmean(map(int, numbers)) for numbers in columns]
    return [0.0, 0.0]


def last_report(metrics: Path) -> tuple[int, float]:
    """Return the step of the last report and the seconds of each step before it; 0 without one."""
    with contextlib.suppress(FileNotFoundError):
        for line in reversed(metrics.read_bytes().splitlines()):
            with contextlib.suppress(ValueError):  # it is being written
                report = json.loads(line)
                if "step_s" in report:
                    return report["step"], report["step_s"]
    return 0, 0.0


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder, some of which may vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def table(samples: Sequence[Sample]) -> list[dict]:
    """Return a row for each quantity: its slope in the first process, and its mean in each."""
    rows = []
    processes = range(samples[-1].process + 1)
    for quantity in QUANTITIES:
        value_of = attrgetter(quantity.name)
        by_process = [_after_warm_up(samples, process) for process in processes]
        if quantity.least:
            by_process = [_least_of_each_minute(part, value_of) for part in by_process]
        chosen = [sample for sample in by_process[0] if value_of(sample)]
        values = [float(value_of(sample)) for sample in chosen]
        slope = fit([sample.seconds / 3600.0 for sample in chosen], values)
        if slope and quantity.relative:
            unit = fmean(values)
            slope = slope._replace(value=slope.value / unit, half_width=slope.half_width / unit)
        seconds = chosen[-1].seconds - chosen[0].seconds if chosen else 0.0
        row = {"name": quantity.label, "limit": quantity.limit, "relative": quantity.relative}
        row |= {"first": values[0] if values else None, "last": values[-1] if values else None}
        row |= {"slope": slope and slope.value, "half_width": slope and slope.half_width}
        row["verdict"] = verdict(slope, quantity.limit, seconds)
        row["means"] = [fmean(map(value_of, part)) if part else None for part in by_process]
        rows.append(row)
    return rows


def _after_warm_up(samples: Sequence[Sample], process: int) -> list[Sample]:
    part = [sample for sample in samples if sample.process == process]
    first_step = next((sample.step for sample in part if sample.step), 0)
    settled = [sample for sample in part if sample.step >= first_step + WARM_UP_STEPS]
    return [sample for sample in settled if sample.seconds >= WARM_UP * part[-1].seconds]


def _least_of_each_minute(samples: Sequence[Sample], value_of: Callable) -> list[Sample]:
    by_minute = groupby(samples, lambda sample: sample.seconds // MINUTE_S)
    return [min(minute, key=value_of) for _, minute in by_minute]


def verdict(slope: Slope | None, limit: float | None, seconds: float) -> str:
    """Compare the interval of a slope with its limit, from samples over some seconds."""
    if limit is None:
        return "–"
    if slope is None:
        return "not measured"
    if seconds < LEAST_S:
        return "too short"
    return "met" if slope.high < limit else "not met" if slope.low > limit else "not shown"


def describe(samples: Sequence[Sample], rows: Sequence[dict]) -> list[str]:
    """Return the table as Markdown."""
    count = f"{samples[-1].process + 1} processes, {len(samples)} samples"
    lines = [
        f"\n{samples[-1].step} steps in {count}\n",
        "| figure | first | last | slope an hour | limit | verdict | mean of each process |",
        "|---" * 7 + "|",
    ]
    for row in rows:
        scale, percent = (100.0, "%") if row["relative"] else (1.0, "")
        slope = limit = "–"
        if row["slope"] is not None:
            slope = f"{scale * row['slope']:+.3g} ± {scale * row['half_width']:.2g}{percent}"
        if row["limit"] is not None:
            limit = f"< {scale * row['limit']:.3g}{percent}"
        first, last, *means = map(_number, (row["first"], row["last"], *row["means"]))
        cells = (row["name"], first, last, slope, limit, row["verdict"], ", ".join(means))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(report_errors(main))
