"""Speak with a trained run.

python utilities/synthesize.py --run runs/demo --text "…" --reference some.wav --out hello.wav
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.cli import report_errors


def bounded(kind: type, low: float, high: float):
    """An argparse type: a number of a kind, from `low` to `high`."""

    def number(text: str):
        value = kind(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not from {low:g} to {high:g}")
        return value

    return number


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speak with a trained run.")
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--text", required=True, help="what to say")
    parser.add_argument("--reference", type=Path, required=True, help="audio file of the voice, half a second or more")
    parser.add_argument("--out", type=Path, default=Path("speech.wav"), help="file to write: .wav, .flac or .ogg")
    parser.add_argument("--language", help="language of the text; the run's first by default")
    parser.add_argument("--speed", type=bounded(float, 0.25, 4.0), default=1.0, help="2 is twice as fast (0.25 to 4)")
    parser.add_argument("--seed", type=bounded(int, 0, 2**31 - 1), default=0, help="the same seed gives the same bytes")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = parse(arguments)
    from myxtts.synthesis.speech import write_speech  # imports TensorFlow, which takes seconds

    write_speech(**vars(asked))
    return 0


if __name__ == "__main__":
    sys.exit(report_errors(main))
