"""A small corpus and short runs on it, which the tests of several engines start."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEPS = 20
FLAGS = (
    f"--task asr --model-size tiny --batch-size 2 --max-steps {STEPS} --log-every 1"
    " --checkpoint-every 4 --validate-every 0 --sample-every 0"
).split()


PROGRAM = ("train_main.py", *FLAGS)
# Seconds of processor time instead of minutes: the toy network, by the same training.
TOY_FLAGS = (
    "--text-frontend characters --model-size tiny --batch-size 2 --reference-seconds 0.5"
    f" --max-steps {STEPS} --log-every 1 --checkpoint-every 4 --validate-every 0 --sample-every 0"
).split()
TOY = ("-m", "tests.engines.toy_train", *TOY_FLAGS)


def make_corpus(folder: Path) -> None:
    command = [sys.executable, "-m", "myxtts", "corpus", "--utterances", "40", "--out", folder]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def train(*flags: str) -> None:
    subprocess.run([sys.executable, "train_main.py", *FLAGS, *flags], cwd=ROOT, check=True)


def train_by_tf_config(*flags: str, logs: Path, program: Sequence[str] = PROGRAM) -> None:
    """Train with two workers of the launcher, which sets TF_CONFIG."""
    launcher = [sys.executable, "-m", "myxtts", "launch", "--workers", "2", "--logs", logs, "--"]
    subprocess.run([*launcher, *program, *flags], cwd=ROOT, check=True)


def losses(run: Path) -> dict[int, float]:
    """Return the losses of a run by step."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}
