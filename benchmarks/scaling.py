"""What workers gain: some against one, each pinned to a core of its own, on the same batches a worker.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --tasks recogniser --workers 2 --num-syncs 3 --steps 200

Trains on the demo corpus by utilities/launch_workers.py, one worker and several by turns, and as many runs at the same
time that do not talk to each other ("apart"): what the machine itself allows, whose cores share memory and cache.
Compares how many audio seconds are trained on in a second: medians over the reports of all rounds, the first of each
run left out. The all-reduce is measured on tensors of the model's size.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.errors import TrainingError

TARGET = 1.8  # of two workers
LOG_EVERY = 20
BYTES_A_PARAMETER = 4
ROOT = Path(__file__).resolve().parents[1]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Some workers against one, each on a core of its own.")
    parser.add_argument("--tasks", nargs="+", choices=("tts", "asr"), default=("tts", "asr"))
    parser.add_argument("--workers", type=bounded(int, 2, 64), default=2, help="that train together (default 2)")
    parser.add_argument(
        "--num-syncs", type=bounded(int, 1, 20), default=2, help="runs of each kind, by turns (default 2)"
    )
    parser.add_argument("--steps", type=bounded(int, 40), default=160, help="of each run (default 160)")
    parser.add_argument("--batch-size", type=bounded(int, 1), default=16, help="of each worker (default 16)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked, reached = parse(arguments), []
    print("| task | workers | audio s/s | steps/s | gain | all-reduce | of the step |\n|---|---|---|---|---|---|---|")
    for task in asked.tasks:
        runs, apart = {1: [], asked.workers: []}, []
        for _ in range(asked.rounds):
            for workers, found in runs.items():
                found.append(trained(task, workers, asked.steps, asked.batch_size))
            with ThreadPoolExecutor(asked.workers) as pool:
                cores = sorted(os.sched_getaffinity(0))[: asked.workers]
                apart.append([*pool.map(partial(trained, task, 1, asked.steps, asked.batch_size), cores)])
        parameters = runs[1][0]["parameters"]
        reduce_s = all_reduce_s(asked.workers, BYTES_A_PARAMETER * parameters)
        alone = median(speed for run in runs[1] for speed in run["audio_seconds_per_s"])
        for workers, found in runs.items():
            speed = median(speed for run in found for speed in run["audio_seconds_per_s"])
            steps = median(speed for run in found for speed in run["steps_per_s"])
            told = f"{1e3 * reduce_s:.0f} ms | {100 * reduce_s * steps:.1f} %" if workers > 1 else "– | –"
            print(f"| {task} | {workers} | {speed:.1f} | {steps:.2f} | {speed / alone:.2f} | {told} |", flush=True)
        reached.append(speed / alone)
        ceiling = sum(
            median(speed for run in place for speed in run["audio_seconds_per_s"]) for place in zip(*apart, strict=True)
        )
        print(f"| {task} | {asked.workers} apart | {ceiling:.1f} | – | {ceiling / alone:.2f} | – | – |", flush=True)
    return int(asked.workers == 2 and min(reached) < TARGET)


def trained(task: str, workers: int, steps: int, batch_size: int, core: int | None = None) -> dict:
    """Parameters of the model, and by name the figures of a run's reports but the first; on one core if it is given."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--task {task} --model-size tiny --text-frontend characters --run run --runs-dir {folder}"
        flags += f" --batch-size {batch_size} --max-steps {steps} --log-every {LOG_EVERY} --validate-every 0"
        command = ["train_main.py", *flags.split(), "--sample-every", "0", "--checkpoint-every", "0"]
        printed = launched(workers, *command) if core is None else pinned(core, *command)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    reports = [json.loads(line) for line in lines][1:]
    parameters = int(re.search(r"([0-9,]+) parameters", printed)[1].replace(",", ""))
    return {"parameters": parameters} | {
        name: [report[name] for report in reports] for name in ("audio_seconds_per_s", "steps_per_s")
    }


def all_reduce_s(workers: int, size_bytes: int) -> float:
    """Seconds of an all-reduce of a tensor of this size, between the sizes that check_distributed.py measures."""
    printed = launched(workers, "utilities/check_distributed.py", "--gpus-per-worker", "0")
    found = re.findall(r"([0-9,]+) +([0-9.]+) ms +[0-9.]+", printed)
    points = sorted((int(size.replace(",", "")), float(ms) / 1e3) for size, ms in found)
    lower = max(point for point in points if point[0] <= size_bytes)
    upper = min(point for point in points if point[0] > size_bytes)
    share = (size_bytes - lower[0]) / (upper[0] - lower[0])
    return lower[1] + share * (upper[1] - lower[1])


def pinned(core: int, *command: str) -> str:
    """What a run on one core printed. Raises TrainingError where it failed."""
    code = f"import os, runpy, sys; os.sched_setaffinity(0, {{{core}}}); sys.argv.pop(0)"
    code += "; runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TrainingError(f"a run on core {core} ended with code {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def launched(workers: int, *command: str) -> str:
    """What the workers printed. Raises TrainingError where they failed."""
    with tempfile.TemporaryDirectory() as logs:
        launcher = f"utilities/launch_workers.py --workers {workers} --cores-per-worker 1 --logs {logs} --"
        done = subprocess.run(
            [sys.executable, *launcher.split(), *command], cwd=ROOT, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise TrainingError(f"{workers} workers ended with code {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(report_errors(main))
