"""What independent jobs are worth that are merged once or in rounds, against one job and two replicas.

    python utilities/make_demo_corpus.py --out data/asr --utterances 1500
    python benchmarks/local_sgd.py
    python benchmarks/local_sgd.py --steps 300 --cases one "one merge" "5 rounds"

Each case trains a tiny recogniser on two halves of a machine and takes the same number of utterances in all: STEPS
steps of 16 alone, half as many of two replicas, and of two jobs as many as are left after a common start. The seconds
are those of all its commands, from the first to the model; the processors are the same two halves in each. What is
measured is the mean of the jobs, also where one of them is better and was kept.
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
from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.errors import TrainingError
from myxtts.training.checkpoint_files import latest, step_of

ROOT = Path(__file__).resolve().parents[1]
SHARED = 0.1  # of the steps, for a common start
QUIET = "--validate-every 0 --sample-every 0 --checkpoint-every 0 --log-every 20"
ALONE = "--data-gpu null --model-gpu null"

Case = Callable[["Bench"], list[Path]]  # trains; gives checkpoints, whose mean is the result


class Bench:
    """Commands on a corpus, in a folder that is gone afterwards.

    Args:
        steps: of one job.
    """

    def __init__(self, corpus: Path, folder: Path, steps: int, seed: int):
        self.folder, self.steps, self.corpus = folder, steps, corpus
        self.common = f"--config {ROOT}/configs/asr_lmu.yaml --runs-dir {folder} --seed {seed} {QUIET}"
        self.seed = seed

    def run(self, *command: str, codes: tuple[int, ...] = (0,)) -> None:
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode not in codes:
            raise TrainingError(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stdout}{done.stderr}")

    def checkpoints(self, *runs: str) -> list[Path]:
        return [latest(self.folder / run / "checkpoints") for run in runs]

    def train(self, name: str, steps: int, flags: str = "") -> list[Path]:
        flags = f"{self.common} --train-data {self.corpus} --run {name} --max-steps {steps} {flags}"
        self.run("train_main.py", *flags.split())
        return self.checkpoints(name)

    def jobs(self, name: str, warmstart_steps: int, flags: str) -> list[Path]:
        """Two jobs from a common start, and their merge."""
        steps = (self.steps + warmstart_steps) // 2
        flags = f"{self.common} --train-data {self.corpus} --run {name} --max-steps {steps} {ALONE} {flags}"
        own = f"--gpus 0 1 --simulate-gpus 2 --warmstart-steps {warmstart_steps}"
        # 1: the merge is worse than its best part.
        self.run("utilities/train_independent.py", *flags.split(), *own.split(), codes=(0, 1))
        found = self.checkpoints(f"{name}/gpu0", f"{name}/gpu1")
        if any(step_of(path) < steps for path in found):
            raise TrainingError(f"a job of '{name}' was lost at {' or '.join(map(str, found))}")
        return found

    def in_rounds(self, name: str, rounds: int, flags: str = "") -> list[Path]:
        return self.jobs(name, round(SHARED * self.steps), f"--num-syncs {rounds} {flags}")

    def from_different_starts(self, name: str) -> list[Path]:
        """Two jobs with weights of their own from the first step, on a half of the corpus and of the machine each."""
        parts = self.folder / name
        split = f"--input {self.corpus} --out {parts} --seed {self.seed}"
        self.run("utilities/split_dataset.py", *split.split())
        data = f"--val-data {parts}/held_out.csv --audio-root {self.corpus} --simulate-gpus 0 {ALONE}"

        def part(number: int) -> None:
            own = f"--train-data {parts}/shard-{number}.csv --run {name}-{number} --max-steps {self.steps // 2}"
            flags = f"{self.common} {own} {data} --seed {self.seed + number}"
            pinned(number, "train_main.py", *flags.split())

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(part, (0, 1)))
        found = self.checkpoints(f"{name}-0", f"{name}-1")
        output = str(self.folder / f"{name}-merged")
        self.run("utilities/merge_checkpoints.py", "--checkpoints", *map(str, found), "--output", output, "--force")
        return found


CASES: dict[str, Case] = {
    "one": lambda bench: bench.train("one", bench.steps),
    "two replicas": lambda bench: bench.train("replicas", bench.steps // 2, f"{ALONE} --model-gpus 0 1"),
    "one merge": lambda bench: bench.jobs("once", round(SHARED * bench.steps), ""),
    "one merge, same random start": lambda bench: bench.jobs("random", 0, ""),
    "one merge, different starts": lambda bench: bench.from_different_starts("different"),
    "5 rounds": lambda bench: bench.in_rounds("five", 5),
    "20 rounds": lambda bench: bench.in_rounds("twenty", 20),
    "5 rounds, optimizers kept": lambda bench: bench.in_rounds("kept", 5, "--sync-optimizer keep"),
    "5 rounds, optimizers reset": lambda bench: bench.in_rounds("reset", 5, "--sync-optimizer reset"),
    "5 rounds, outer Nesterov 0.7, 0.9": lambda bench: bench.in_rounds(
        "outer", 5, "--outer-learning-rate 0.7 --outer-momentum 0.9"
    ),
}


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Independent jobs and merges against one job and two replicas.")
    parser.add_argument("--corpus", type=Path, default=Path("data/asr"), help="(default data/asr)")
    parser.add_argument("--steps", type=bounded(int, 40), default=400, help="of one job (default 400)")
    parser.add_argument("--seed", type=bounded(int, 0, 1000), default=0)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=tuple(CASES), metavar="CASE", help="of the table")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked, found = parse(arguments), {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(asked.corpus.resolve(), Path(folder), asked.steps, asked.seed)
        for name in asked.cases:
            began_s = time.perf_counter()
            checkpoints = CASES[name](bench)
            found[name] = checkpoints, time.perf_counter() - began_s
            print(f"{name}: {found[name][1]:.0f} s", flush=True)
            if name.startswith("one merge"):
                found[f"{name}: one of its jobs"] = checkpoints[:1], None
        print("\n| case | character error rate | loss | seconds |\n|---|---|---|---|")
        for name, measured in measure({name: checkpoints for name, (checkpoints, _) in found.items()}).items():
            seconds = found[name][1]
            took = "–" if seconds is None else f"{seconds:.0f}"
            print(f"| {name} | {100 * measured.metric:.1f} % | {measured.loss:.3f} | {took} |")
    return 0


def measure(cases: dict[str, list[Path]]) -> dict:
    """The mean of each case's checkpoints, by the audio that each has heard, on the same held-out utterances."""
    from myxtts.config.schema import PlacementConfig
    from myxtts.evaluation.held_out import load_run_corpora
    from myxtts.local_sgd.averaging import normalised
    from myxtts.local_sgd.interpolation import make_evaluator
    from myxtts.local_sgd.merge_inputs import merge_weights, read_input
    from myxtts.placement import devices
    from myxtts.placement.routes import plan_routes

    placement = plan_routes(PlacementConfig(), devices.gpu_count())
    devices.configure(placement)
    parts = [read_input(path) for path in dict.fromkeys(path for checkpoints in cases.values() for path in checkpoints)]
    first = parts[0]
    config, _, held_out = load_run_corpora(first.checkpoint, first.metadata, first.checkpoint.parents[1])
    evaluate = make_evaluator(parts, held_out, config, placement.routes[0], first.checkpoint.parents[1])
    measured = {}
    for name, checkpoints in cases.items():
        own = [part.checkpoint in checkpoints for part in parts]
        weights = merge_weights([part for part, is_own in zip(parts, own, strict=True) if is_own], None)
        shares = iter(normalised(weights))
        measured[name] = evaluate(tuple(next(shares) if is_own else 0.0 for is_own in own))
    return measured


if __name__ == "__main__":
    sys.exit(report_errors(main))
