"""Measure a run, a voice or a recogniser, on its held-out utterances or on other recordings.

python utilities/evaluate.py --run runs/demo --json score.json
python utilities/evaluate.py --run runs/voices --data data/voices_unseen/corpus.csv
python utilities/evaluate.py --run runs/demo --asr runs/asr
python utilities/evaluate.py --run runs/asr
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.cli import bounded, report_errors


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Measure a run, a voice or a recogniser, on its held-out utterances or on other recordings."
    )
    parser.add_argument("--run", type=Path, required=True, help="folder of the run; work where it was started")
    parser.add_argument("--checkpoint", help="such as step-002000; the best, or the newest, by default")
    parser.add_argument(
        "--data", metavar="CORPUS", type=Path, help="measure on these recordings, not the held-out ones"
    )
    parser.add_argument(
        "--utterances",
        type=bounded(int, 1),
        help="the most to measure; by default 50 of a voice, and all of a recogniser",
    )
    parser.add_argument(
        "--asr", metavar="RUN", type=Path, help="the run of a recogniser, which says how well it hears the voice"
    )
    parser.add_argument("--steps", type=bounded(int, 1, 1000), help="steps of synthesis; the run's by default")
    parser.add_argument(
        "--guidance", type=bounded(float, 0.0, 10.0), help="guidance of synthesis (0 to 10); the run's by default"
    )
    parser.add_argument("--json", dest="json_file", metavar="FILE", type=Path, help="file for the figures")
    parser.add_argument("--out", type=Path, help="folder for pictures; RUN/evaluation/CHECKPOINT by default")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = parse(arguments)
    from myxtts.evaluation.tts_score import Choice, write_score  # imports TensorFlow, which takes seconds

    choice = Choice(asked.utterances, asked.data, asked.steps, asked.guidance, asked.asr)
    write_score(asked.run, asked.checkpoint, choice, asked.json_file, asked.out)
    return 0


if __name__ == "__main__":
    sys.exit(report_errors(main))
