"""Train a few steps of each kind of run and print its losses, which a change must leave alike.

    python tests/robustness/losses.py                  # five minutes on 2 cores
    python tests/robustness/losses.py tts resumed      # some of the runs
    python tests/robustness/losses.py --virtual        # on virtual GPUs

One line a run: the SHA-256 of all losses that it reported, that of its last weights, and the last
losses. Compare the lines of two commits.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from myxtts.checkpoints.files import latest, read_record
from myxtts.report.metrics import read_metrics

ROOT = Path(__file__).parents[2]
GPUS = 3
COMMON = (
    "--model-size tiny --batch-size 4 --log-every 1 --validate-every 10 --sample-every 0"
    " --max-steps 20 --checkpoint-every 0"
)
DUAL, REPLICAS = "--data-gpu 0 --model-gpu 1", "--model-gpus 0 1"
RUNS = {
    "tts": f"{DUAL} --vtlp 0.1 --ema-decay 0.99",
    "single": "--data-gpu 0 --model-gpu 0",
    "producers": "--data-gpus 0 1 --model-gpu 2",
    "replicas": f"{REPLICAS} --gradient-accumulation 2",
    "shares": f"{REPLICAS} --batch-shares 1 0.5",
    "resumed": f"{DUAL} --stop-at-step 10",
    "asr": f"{DUAL} --task asr --ema-decay 0.99",
    "vocoder": f"{DUAL} --task vocoder --ema-decay 0.99",
    "taught": f"{DUAL} --teacher {{folder}}/tts",
}


class Trainer:
    """Trains on a demo corpus in a folder.

    Args:
        program: what comes before the program, such as that of the virtual GPUs.
        flags: of all runs.
    """

    def __init__(self, folder: Path, program: list[str], flags: str):
        self.folder, self._program, self._flags = folder, program, flags
        corpus = ["--utterances", "60", "--out", str(folder / "corpus")]
        self._run(["-m", "myxtts", "corpus", *corpus])

    def _run(self, command: list[str]) -> None:
        command = [sys.executable, *command]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{command}: exit code {done.returncode}\n{done.stderr[-2000:]}")

    def train(self, run: str, flags: str) -> None:
        places = f"--train-data {self.folder}/corpus --runs-dir {self.folder} --run {run}"
        flags = f"{places} {COMMON} {self._flags} {flags.format(folder=self.folder)}"
        self._run([*self._program, "train_main.py", *flags.split()])

    def line(self, run: str) -> str:
        digest, last = hashlib.sha256(), {}
        for report in read_metrics(self.folder / run / "metrics.jsonl"):
            is_loss = re.compile("step$|validation|.*loss$").match
            last = {name: value for name, value in report.items() if is_loss(name)}
            digest.update(json.dumps(last, sort_keys=True).encode())
        checkpoint = latest(self.folder / run / "checkpoints")
        assert checkpoint is not None
        weights = read_record(checkpoint).digests["model"]
        return f"{run:<10} {digest.hexdigest()[:16]} {weights[:16]}  {json.dumps(last)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--virtual", action="store_true", help="train on virtual GPUs")
    options = parser.parse_args()
    program, flags = [], f"--simulate-gpus {GPUS}"
    if options.virtual:
        program, flags = f"-m tests.virtual_gpu --gpus {GPUS} --".split(), ""
    with tempfile.TemporaryDirectory() as name:
        trainer = Trainer(Path(name), program, flags)
        for run, own in RUNS.items():
            if options.runs and run not in options.runs:
                continue
            if run == "taught" and not (trainer.folder / "tts").exists():
                trainer.train("tts", RUNS["tts"])
            trainer.train(run, own)
            if run == "resumed":
                # With another number of replicas than before.
                trainer.train(run, f"--resume {REPLICAS}")
            print(trainer.line(run), flush=True)


if __name__ == "__main__":
    main()
