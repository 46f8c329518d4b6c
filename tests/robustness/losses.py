"""Train 50 steps of each kind of run and print its losses, which a change must leave alike.

    python tests/robustness/losses.py                  # ten minutes on 2 cores
    python tests/robustness/losses.py tts resumed      # some of the runs

One line a run: the SHA-256 of all losses that it reported, and the last ones. Compare the lines of
two commits.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from myxtts.report.metrics import read_metrics

ROOT = Path(__file__).parents[2]
COMMON = (
    "--model-size tiny --batch-size 4 --log-every 1 --validate-every 25 --sample-every 0"
    " --max-steps 50 --checkpoint-every 0 --simulate-gpus 2"
).split()
DUAL = "--data-gpu 0 --model-gpu 1"
RUNS = {
    "tts": f"{DUAL} --vtlp 0.1 --ema-decay 0.99",
    "asr": f"{DUAL} --task asr",
    "vocoder": f"{DUAL} --task vocoder --ema-decay 0.99",
    "replicas": "--model-gpus 0 1",
}


def run_program(*command: str) -> None:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: exit code {done.returncode}\n{done.stderr[-2000:]}")


def train(folder: Path, run: str, flags: str) -> None:
    places = ["--train-data", str(folder / "corpus"), "--runs-dir", str(folder), "--run", run]
    run_program("train_main.py", *places, *COMMON, *flags.split())


def losses(folder: Path, run: str) -> str:
    digest, last = hashlib.sha256(), {}
    for report in read_metrics(folder / run / "metrics.jsonl"):
        is_loss = re.compile("step$|validation|.*loss$").match
        last = {name: value for name, value in report.items() if is_loss(name)}
        digest.update(json.dumps(last, sort_keys=True).encode())
    return f"{run:<10} {digest.hexdigest()[:16]}  {json.dumps(last)}"


def main(chosen: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = ("--utterances", "60", "--out", str(folder / "corpus"))
        run_program("utilities/make_demo_corpus.py", *corpus)
        for run, flags in RUNS.items():
            if not chosen or run in chosen:
                train(folder, run, flags)
                print(losses(folder, run), flush=True)
        if not chosen or "resumed" in chosen:
            train(folder, "resumed", f"{RUNS['tts']} --stop-at-step 20")
            train(folder, "resumed", f"{RUNS['tts']} --resume")
            print(losses(folder, "resumed"), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
