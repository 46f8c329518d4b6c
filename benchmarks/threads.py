"""Compare sizes of TensorFlow's thread pools: speed of training on the CPU, and whether the losses
are equal.

    python benchmarks/threads.py
    python benchmarks/threads.py --rows tiny-dual --threads 2,2 1,2 --steps 40 --repeats 1
    taskset -c 0 python benchmarks/threads.py --rows tiny-single --threads 1,1 1,2

Each run is a process of its own, because the pools cannot change in a process. All sizes of a row
take turns (A B A B), that a change of the machine's load meets all of them. `2,2` is intra-op 2 and
inter-op 2; TensorFlow's default is the number of cores for both. The ratio is to the first size.
Processor seconds are of the whole process, with its start.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.errors import ConfigError
from myxtts.machine import core_count
from myxtts.report.metrics_reader import read_metrics

ROOT = Path(__file__).resolve().parents[1]
DUAL = ("--simulate-gpus", "2", "--data-gpu", "0", "--model-gpu", "1")
REPLICATED = ("--simulate-gpus", "2", "--model-gpus", "0", "1")
ASR = ("--task", "asr", "--text-frontend", "characters")


@dataclass(frozen=True)
class Row:
    """A training to measure.

    Attributes:
        weight: time of a step relative to the first row's; longer steps are measured fewer times.
    """

    arguments: tuple[str, ...]
    weight: int = 1


ROWS = {
    "tiny-dual": Row((*DUAL, "--model-size", "tiny", "--batch-size", "8")),
    "tiny-single": Row(("--model-size", "tiny", "--batch-size", "8")),
    "tiny-replicated": Row((*REPLICATED, "--model-size", "tiny", "--batch-size", "8"), 2),
    "small-dual": Row((*DUAL, "--model-size", "small", "--batch-size", "8"), 4),
    "small-single": Row(("--model-size", "small", "--batch-size", "8"), 4),
    "normal-dual": Row((*DUAL, "--model-size", "normal", "--batch-size", "8"), 10),
    "normal-single": Row(("--model-size", "normal", "--batch-size", "8"), 10),
    "asr-dual": Row((*ASR, *DUAL, "--model-size", "tiny"), 2),
    "asr-single": Row((*ASR, "--model-size", "tiny"), 2),
}
REPORTS = 6  # of a run; the first is left out, because its steps are traced


@dataclass(frozen=True)
class Run:
    """What one run measured."""

    steps_per_s: float
    processor_s: float
    losses: tuple[float, ...]


def main() -> int:
    arguments = parse()
    results = {}
    print(f"{core_count()} cores; medians of {arguments.repeats} runs")
    print(
        f"{'row':16} {'threads':>8} {'steps/s':>8} {'ratio':>6} {'CPU s':>6} {'ratio':>6}  losses"
    )
    for name in arguments.rows:
        runs: dict[str, list[Run]] = {threads: [] for threads in arguments.threads}
        for _ in range(arguments.repeats):
            for threads in arguments.threads:
                runs[threads].append(train(ROWS[name], threads, arguments))
        results[name] = runs
        print_row(name, runs)
    differing = [
        name
        for name, runs in results.items()
        if len({run.losses for each in runs.values() for run in each}) > 1
    ]
    print(
        f"losses differ in {', '.join(differing)}"
        if differing
        else "all losses of a row are equal, bit for bit"
    )
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    cores = core_count()
    parser.add_argument(
        "--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW", help=", ".join(ROWS)
    )
    parser.add_argument(
        "--threads",
        nargs="+",
        default=[f"{cores},{cores}", f"1,{cores}"],
        help="INTRA,INTER or auto",
    )
    parser.add_argument(
        "--steps",
        type=bounded(int, REPORTS),
        default=120,
        help="of the tiny voice; others take fewer",
    )
    parser.add_argument("--repeats", type=bounded(int, 1), default=2)
    parser.add_argument(
        "--train-data", type=Path, default=ROOT / "data" / "demo", help="default: data/demo"
    )
    return parser.parse_args()


def train(row: Row, threads: str, arguments: argparse.Namespace) -> Run:
    """Train in a process of its own."""
    intra_op, _, inter_op = threads.partition(",")
    every = max(arguments.steps // row.weight // REPORTS, 1)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            str(ROOT / "train_main.py"),
            *row.arguments,
            "--runs-dir",
            folder,
            "--run",
            "run",
        ]
        command += ["--train-data", str(arguments.train_data), "--intra-op-threads", intra_op]
        command += ["--inter-op-threads", inter_op or intra_op, "--max-steps", str(REPORTS * every)]
        command += ["--log-every", str(every), "--warmup-steps", "10", "--learning-rate", "2e-3"]
        command += ["--validate-every", "0", "--sample-every", "0", "--checkpoint-every", "0"]
        before = os.times()
        done = subprocess.run(command, capture_output=True, text=True)
        after = os.times()
        if done.returncode:
            raise ConfigError(
                f"the training ended with exit code {done.returncode}: {done.stderr.strip()}"
            )
        reports = read_metrics(Path(folder) / "run" / "metrics.jsonl")
    processor_s = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    step_s = median(report["step_s"] for report in reports[1:])
    return Run(1.0 / step_s, processor_s, tuple(report["loss"] for report in reports))


def print_row(name: str, runs: dict[str, list[Run]]) -> None:
    """Print the medians of each size, and their ratios to those of the first."""
    speeds = {threads: median(run.steps_per_s for run in each) for threads, each in runs.items()}
    seconds = {threads: median(run.processor_s for run in each) for threads, each in runs.items()}
    first = next(iter(runs))
    for threads, each in runs.items():
        speed, processor_s = speeds[threads], seconds[threads]
        losses = "equal" if {run.losses for run in each} == {runs[first][0].losses} else "differ"
        print(f"{name:16} {threads:>8} {speed:8.2f} {speed / speeds[first]:6.2f} ", end="")
        print(f"{processor_s:6.0f} {processor_s / seconds[first]:6.2f}  {losses}", flush=True)


if __name__ == "__main__":
    sys.exit(report_errors(main))
