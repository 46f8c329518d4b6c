"""Train speech recognition from scratch: Legendre memory units against a GRU and convolutions of
the same size.

    python benchmarks/asr.py
    python benchmarks/asr.py --encoders lmu --steps 900
    python benchmarks/asr.py --config configs/asr_voices.yaml --encoders lmu --steps 1500

Creates the demo corpus of 1,500 sentences if it is missing, trains each encoder with the
configuration through train_main.py, in dual placement on two simulated GPUs, and prints the error
rates of the last validation, on the 5 % of the sentences that are held out, and the time from the
first step to the last, including validation.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.base.console import report_errors
from myxtts.base.errors import TrainingError
from myxtts.config.parser import bounded
from myxtts.corpus.demo_corpus import make_demo_corpus
from myxtts.report.metrics import read_metrics

ROOT = Path(__file__).resolve().parents[1]
CONFIG = "configs/asr_voice.yaml"
CORPUS = ROOT / "data/asr"  # of this configuration
SENTENCES = 1500
DUAL = "--simulate-gpus 2 --data-gpu 0 --model-gpu 1"


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare encoders for speech recognition: LMU and GRU."
    )
    add = parser.add_argument
    add("--encoders", nargs="+", choices=("lmu", "gru"), default=("lmu", "gru"))
    add("--steps", type=bounded(int, 50), default=300, help="training steps (default 300)")
    add("--seed", type=bounded(int, 0), default=0, help="seed of the runs (default 0)")
    add("--config", default=CONFIG, help=f"configuration (default {CONFIG})")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.config == CONFIG and not (CORPUS / "metadata.csv").exists():
        make_demo_corpus(CORPUS, utterances=SENTENCES, languages=["en"], speakers=1, seed=0)
    print(
        "| encoder | parameters | steps | minutes | steps/s | CER | WER"
        " |\n|---|---|---|---|---|---|---|"
    )
    for encoder in options.encoders:
        figures = train_encoder(options.config, encoder, options.steps, options.seed)
        rates = (
            f"{100 * figures[name]:.1f} %" for name in ("character_error_rate", "word_error_rate")
        )
        cost = (
            f"{figures['parameters']:,} | {options.steps} | {figures['minutes']:.1f} |"
            f" {figures['steps_per_s']:.1f}"
        )
        print(f"| {encoder} | {cost} | {' | '.join(rates)} |", flush=True)
    return 0


def train_encoder(config: str, encoder: str, steps: int, seed: int) -> dict[str, float]:
    """Train a model and return its figures by name. Raises TrainingError if the run fails."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--config {config} {DUAL} --encoder {encoder} --max-steps {steps} --seed {seed}"
        flags += f" --runs-dir {folder} --run run"
        flags += f" --validate-every {steps} --sample-every 0 --checkpoint-every 0"
        command = [sys.executable, "-u", "train_main.py", *flags.split()]
        output: list[str] = []
        start_s = time.monotonic()
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as run:
            for line in run.stdout:
                output.append(line)
                if line.startswith("first step"):
                    start_s = time.monotonic()
        minutes = (time.monotonic() - start_s) / 60
        if run.returncode:
            raise TrainingError(
                f"train_main.py {flags} ended with code {run.returncode}:\n{''.join(output)}"
            )
        reports = read_metrics(Path(folder) / "run" / "metrics.jsonl")
    parameters = int(re.search(r"([0-9,]+) parameters", "".join(output))[1].replace(",", ""))
    speeds = sorted(report["steps_per_s"] for report in reports)
    rates = {name.removeprefix("validation_"): value for name, value in reports[-1].items()}
    return rates | {
        "parameters": parameters,
        "minutes": minutes,
        "steps_per_s": speeds[len(speeds) // 2],
    }


if __name__ == "__main__":
    sys.exit(report_errors(main))
