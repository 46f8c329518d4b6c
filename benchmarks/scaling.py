"""Measure how much several workers gain over one, each pinned to its own core, with the same batch
size per worker.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --tasks asr --workers 2 --repeats 3 --steps 200

Trains on the demo corpus with `myxtts launch`, alternating between one worker, several
workers, and as many independent runs at the same time. The independent runs show what the machine
allows, since its cores share memory and cache. The table compares audio seconds trained per second:
medians over the reports of all repeats, without the first report of each run. The all-reduce is
measured on tensors of the model's size.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.base.console import report_errors
from myxtts.base.errors import TrainingError
from myxtts.config.parser import bounded
from myxtts.report.metrics import read_metrics

TARGET_GAIN = 1.8  # of two workers
LOG_EVERY = 20
FIGURES = "audio_seconds_per_s", "steps_per_s"
BYTES_PER_PARAMETER = 4
ROOT = Path(__file__).resolve().parents[1]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--tasks", nargs="+", choices=("tts", "asr"), default=("tts", "asr"))
    add("--workers", type=bounded(int, 2, 64), default=2, help="number of workers (default 2)")
    add("--repeats", type=bounded(int, 1, 20), default=2, help="runs of each kind (default 2)")
    add("--steps", type=bounded(int, 40), default=160, help="steps of each run (default 160)")
    add("--batch-size", type=bounded(int, 1), default=16, help="of each worker (default 16)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options, gains = parse(arguments), []
    header = "task | workers | audio s/s | steps/s | gain | all-reduce | all-reduce / step"
    print(f"| {header} |\n{'|---' * 7}|")
    for task in options.tasks:
        runs: dict[int, list[dict]] = {1: [], options.workers: []}
        independent: list[list[dict]] = []
        for _ in range(options.repeats):
            for workers, results in runs.items():
                results.append(train(task, workers, options.steps, options.batch_size))
            cores = sorted(os.sched_getaffinity(0))[: options.workers]
            alone = partial(train, task, 1, options.steps, options.batch_size)
            with ThreadPoolExecutor(options.workers) as pool:
                independent.append([*pool.map(alone, cores)])
        parameters = runs[1][0]["parameters"]
        reduce_s = all_reduce_s(options.workers, BYTES_PER_PARAMETER * parameters)
        single = median_of(runs[1], "audio_seconds_per_s")
        for workers, results in runs.items():
            speed, steps = (median_of(results, name) for name in FIGURES)
            all_reduce = "– | –"
            if workers > 1:
                all_reduce = f"{1e3 * reduce_s:.0f} ms | {100 * reduce_s * steps:.1f} %"
            figures = f"{speed:.1f} | {steps:.2f} | {speed / single:.2f} | {all_reduce}"
            print(f"| {task} | {workers} | {figures} |", flush=True)
        gains.append(speed / single)
        of_cores = zip(*independent, strict=True)
        ceiling = sum(median_of(runs, "audio_seconds_per_s") for runs in of_cores)
        figures = f"{ceiling:.1f} | – | {ceiling / single:.2f} | – | –"
        print(f"| {task} | {options.workers} independent | {figures} |", flush=True)
    return int(options.workers == 2 and min(gains) < TARGET_GAIN)


def median_of(runs: Sequence[dict], name: str) -> float:
    return median(value for run in runs for value in run[name])


def train(task: str, workers: int, steps: int, batch_size: int, core: int | None = None) -> dict:
    """Train, on one core if given; return parameters and figures of all reports but the first."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--task {task} --model-size tiny --text-frontend characters --run run"
        flags += f" --runs-dir {folder} --batch-size {batch_size} --max-steps {steps}"
        flags += f" --log-every {LOG_EVERY} --validate-every 0 --sample-every 0"
        # One GPU is simulated: the gain is that of cores, also on a machine with GPUs.
        flags += " --checkpoint-every 0 --simulate-gpus 1"
        command = "train_main.py", *flags.split()
        printed = launched(workers, *command) if core is None else pinned(core, *command)
        reports = read_metrics(Path(folder) / "run" / "metrics.jsonl")[1:]
    parameters = int(re.search(r"([0-9,]+) parameters", printed)[1].replace(",", ""))
    figures = {name: [report[name] for report in reports] for name in FIGURES}
    return {"parameters": parameters} | figures


def all_reduce_s(workers: int, size_bytes: int) -> float:
    """Return the seconds of an all-reduce, interpolated between sizes of check_distributed.py."""
    printed = launched(workers, "-m", "myxtts", "check-distributed", "--gpus-per-worker", "0")
    rows = re.findall(r"([0-9,]+) +([0-9.]+) ms +[0-9.]+", printed)
    points = sorted((int(size.replace(",", "")), float(ms) / 1e3) for size, ms in rows)
    lower = max(point for point in points if point[0] <= size_bytes)
    upper = min(point for point in points if point[0] > size_bytes)
    fraction = (size_bytes - lower[0]) / (upper[0] - lower[0])
    return lower[1] + fraction * (upper[1] - lower[1])


def pinned(core: int, *command: str) -> str:
    """Return the output of a run on one core. Raise TrainingError if it fails."""
    code = f"import os, runpy, sys; os.sched_setaffinity(0, {{{core}}}); sys.argv.pop(0)"
    code += "; runpy.run_path(sys.argv[0], run_name='__main__')"
    return printed_by(f"a run on core {core}", "-c", code, *command)


def launched(workers: int, *command: str) -> str:
    """Return the output of the workers. Raise TrainingError if they fail."""
    with tempfile.TemporaryDirectory() as logs:
        launcher = f"-m myxtts launch --workers {workers} --cores-per-worker 1 --logs {logs} --"
        return printed_by(f"{workers} workers", *launcher.split(), *command)


def printed_by(name: str, *command: str) -> str:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        output = f"{done.stdout}\n{done.stderr}"
        raise TrainingError(f"{name} ended with code {done.returncode}:\n{output}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(report_errors(main))
