"""Compare independent jobs with one merge or several syncs to a single job and to two replicas.

    python -m myxtts corpus --out data/asr --utterances 1500
    python benchmarks/local_sgd.py
    python benchmarks/local_sgd.py --steps 300 --cases "single job" "one merge" "5 syncs"

Each case trains a tiny recogniser on two halves of a machine with the same total number of
utterances: STEPS steps of 16 for a single job, half as many for two replicas, and for two jobs half
of the steps that remain after a common start. All GPUs are simulated. The seconds include all
commands of a case; every case uses the same two halves of the processors. The table shows the mean
of the jobs, even if the merge kept a better job instead.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.scaling import pinned
from myxtts.base.console import report_errors
from myxtts.base.errors import TrainingError
from myxtts.base.machine import usable_cores
from myxtts.checkpoints.files import latest, step_of
from myxtts.config.parser import bounded
from myxtts.devicefeed.errors import PlacementError

ROOT = Path(__file__).resolve().parents[1]
WARMSTART_FRACTION = 0.1  # of the steps
QUIET = "--validate-every 0 --sample-every 0 --checkpoint-every 0 --log-every 20"
DUAL = "--simulate-gpus 2 --data-gpu 0 --model-gpu 1"
REPLICAS = "--simulate-gpus 2 --model-gpus 0 1"
JOBS = "--gpus 0 1 --simulate-gpus 2"
HALF = "--simulate-gpus 1"  # of the machine: the process is pinned to it

Case = Callable[["Bench"], list[Path]]  # trains and returns the checkpoints whose mean is measured


class Bench:
    """Runs commands on a corpus.

    Args:
        folder: of the runs.
        steps: of a single job.
    """

    def __init__(self, corpus: Path, folder: Path, steps: int, seed: int):
        self.folder, self.steps, self.corpus = folder, steps, corpus
        self.common = f"--config {ROOT}/configs/asr_voice.yaml --runs-dir {folder}"
        self.common += f" --train-data {corpus} --seed {seed} {QUIET}"
        self.seed = seed

    def run(self, *command: str, codes: tuple[int, ...] = (0,)) -> None:
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
        if done.returncode not in codes:
            ended = f"{' '.join(command)} ended with code {done.returncode}"
            raise TrainingError(f"{ended}:\n{done.stdout}{done.stderr}")

    def checkpoints(self, *runs: str) -> list[Path]:
        found = {run: latest(self.folder / run / "checkpoints") for run in runs}
        if missing := [run for run, checkpoint in found.items() if checkpoint is None]:
            runs = " and ".join(missing)
            raise TrainingError(f"{runs} wrote no checkpoint: see their log.txt in {self.folder}")
        return [checkpoint for checkpoint in found.values() if checkpoint is not None]

    def train(self, name: str, steps: int, flags: str) -> list[Path]:
        flags = f"{self.common} --run {name} --max-steps {steps} {flags}"
        self.run("train_main.py", *flags.split())
        return self.checkpoints(name)

    def jobs(self, name: str, warmstart_steps: int, flags: str) -> list[Path]:
        """Train two jobs from a common start, and merge them."""
        steps = (self.steps + warmstart_steps) // 2
        flags = f"{self.common} --run {name} --max-steps {steps} {flags}"
        launcher_flags = f"{JOBS} --warmstart-steps {warmstart_steps}"
        # Exit code 1: the mean is worse than its best input.
        self.run("-m", "myxtts", "jobs", *flags.split(), *launcher_flags.split(), codes=(0, 1))
        checkpoints = self.checkpoints(f"{name}/gpu0", f"{name}/gpu1")
        if any(step_of(path) < steps for path in checkpoints):
            raise TrainingError(f"a job of '{name}' failed at {' or '.join(map(str, checkpoints))}")
        return checkpoints

    def with_syncs(self, name: str, syncs: int, flags: str = "") -> list[Path]:
        warmstart_steps = round(WARMSTART_FRACTION * self.steps)
        return self.jobs(name, warmstart_steps, f"--num-syncs {syncs} {flags}")

    def from_different_starts(self, name: str) -> list[Path]:
        """Train two jobs with different initial weights, each on a shard and half the machine."""
        shards = self.folder / name
        split = f"--input {self.corpus} --out {shards} --seed {self.seed}"
        self.run("utilities/split_dataset.py", *split.split())
        cores = usable_cores()
        if len(cores) < 2:
            raise PlacementError(
                f"two jobs of one core each need two cores, and this process may use {len(cores)}."
            )
        data = f"--val-data {shards}/held_out.csv --audio-root {self.corpus} {HALF}"

        def train_job(number: int) -> None:
            flags = f"{self.common} --train-data {shards}/shard-{number}.csv --run {name}-{number}"
            flags += f" --max-steps {self.steps // 2} {data} --seed {self.seed + number}"
            pinned(cores[number], "train_main.py", *flags.split())

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(train_job, (0, 1)))
        checkpoints = self.checkpoints(f"{name}-0", f"{name}-1")
        inputs = "--checkpoints", *map(str, checkpoints)
        output = "--output", str(self.folder / f"{name}-merged"), "--force"
        self.run("utilities/merge_checkpoints.py", *inputs, *output)
        return checkpoints


KEEP, RESET = "--sync-optimizer keep", "--sync-optimizer reset"
NESTEROV = "--outer-learning-rate 0.7 --outer-momentum 0.9"
CASES: dict[str, Case] = {
    "single job": lambda bench: bench.train("single", bench.steps, DUAL),
    "two replicas": lambda bench: bench.train("replicas", bench.steps // 2, REPLICAS),
    "one merge": lambda bench: bench.jobs("once", round(WARMSTART_FRACTION * bench.steps), ""),
    "one merge, same random start": lambda bench: bench.jobs("random", 0, ""),
    "one merge, different starts": lambda bench: bench.from_different_starts("different"),
    "5 syncs": lambda bench: bench.with_syncs("five", 5),
    "20 syncs": lambda bench: bench.with_syncs("twenty", 20),
    "5 syncs, optimizers kept": lambda bench: bench.with_syncs("kept", 5, KEEP),
    "5 syncs, optimizers reset": lambda bench: bench.with_syncs("reset", 5, RESET),
    "5 syncs, outer Nesterov 0.7, 0.9": lambda bench: bench.with_syncs("outer", 5, NESTEROV),
}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("--corpus", type=Path, default=Path("data/asr"), help="(default data/asr)")
    add("--steps", type=bounded(int, 40), default=400, help="steps of a single job (default 400)")
    add("--seed", type=bounded(int, 0, 1000), default=0)
    add(
        "--cases",
        nargs="+",
        choices=CASES,
        default=tuple(CASES),
        metavar="CASE",
        help="cases to run",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    checkpoints: dict[str, list[Path]] = {}
    elapsed_s: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.corpus.resolve(), Path(folder), options.steps, options.seed)
        for name in options.cases:
            started_s = time.perf_counter()
            checkpoints[name] = CASES[name](bench)
            elapsed_s[name] = time.perf_counter() - started_s
            print(f"{name}: {elapsed_s[name]:.0f} s", flush=True)
            if name.startswith("one merge"):
                checkpoints[f"{name}: one of its jobs"] = checkpoints[name][:1]
        print("\n| case | character error rate | loss | seconds |\n|---|---|---|---|")
        for name, measurement in measure(checkpoints).items():
            seconds = f"{elapsed_s[name]:.0f}" if name in elapsed_s else "–"
            print(
                f"| {name} | {100 * measurement.metric:.1f} % | {measurement.loss:.3f} |"
                f" {seconds} |"
            )
    return 0


def measure(cases: dict[str, list[Path]]) -> dict:
    """Measure the mean of each case's checkpoints on the same held-out utterances, by audio."""
    from myxtts.extras.jobs.mean import normalised
    from myxtts.extras.jobs.merge import merge_weights, read_input
    from myxtts.extras.jobs.verdict import make_evaluator
    from myxtts.placement import devices
    from myxtts.tasks.evaluation.held_out import load_held_out

    placement = devices.configure_default()
    paths = dict.fromkeys(path for checkpoints in cases.values() for path in checkpoints)
    inputs = [read_input(path) for path in paths]
    run = inputs[0]
    measured = load_held_out(run, run.path)
    evaluate = make_evaluator(
        inputs, measured.manifest, measured.config, placement.routes[0], run.path
    )
    measurements = {}
    for name, checkpoints in cases.items():
        used = [source.checkpoint.path in checkpoints for source in inputs]
        weights = merge_weights(
            [source for source, is_used in zip(inputs, used, strict=True) if is_used], None
        )
        coefficients = iter(normalised(weights))
        measurements[name] = evaluate(
            tuple(next(coefficients) if is_used else 0.0 for is_used in used)
        )
    return measurements


if __name__ == "__main__":
    sys.exit(report_errors(main))
