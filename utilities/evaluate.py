"""Measure the voice of a run on its held-out utterances, or on other recordings.

python utilities/evaluate.py --run runs/demo --json score.json
python utilities/evaluate.py --run runs/voices --data data/voices_unseen/corpus.csv
"""

import argparse
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.cli import report_errors


def positive(text: str) -> int:
    """An argparse type: an integer of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def not_negative(text: str) -> float:
    """An argparse type: a finite number of at least 0."""
    value = float(text)
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a finite number of at least 0")
    return value


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure the voice of a run on its held-out utterances, or on other recordings."
    )
    parser.add_argument("--run", type=Path, required=True, help="folder of the run; work where it was started")
    parser.add_argument("--checkpoint", help="such as step-002000; the best, or the newest, by default")
    parser.add_argument(
        "--data", metavar="CORPUS", type=Path, help="measure on these recordings, not the held-out ones"
    )
    parser.add_argument("--utterances", type=positive, default=50, help="the most to measure (default 50)")
    parser.add_argument("--steps", type=positive, help="steps of synthesis; the run's by default")
    parser.add_argument("--guidance", type=not_negative, help="guidance of synthesis; the run's by default")
    parser.add_argument("--json", dest="json_file", metavar="FILE", type=Path, help="file for the figures")
    parser.add_argument("--out", type=Path, help="folder for pictures; RUN/evaluation/CHECKPOINT by default")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = parse(arguments)
    from myxtts.evaluation.score import Choice, write_score  # imports TensorFlow, which takes seconds

    choice = Choice(asked.utterances, asked.data, asked.steps, asked.guidance)
    write_score(asked.run, asked.checkpoint, choice, asked.json_file, asked.out)
    return 0


if __name__ == "__main__":
    sys.exit(report_errors(main))
