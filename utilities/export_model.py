"""Write a trained run as a TensorFlow SavedModel, which speaks without this package.

python utilities/export_model.py --run runs/demo --out demo_voice
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.cli import bounded, report_errors


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Write a trained run as a TensorFlow SavedModel.")
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--out", type=Path, required=True, help="folder to make")
    parser.add_argument("--checkpoint", help="such as step-002000; the best, or the newest, by default")
    parser.add_argument("--iterations", type=bounded(int, 1, 1000), help="of Griffin-Lim; as in synthesis by default")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = parse(arguments)
    from myxtts.synthesis.export import export_run  # imports TensorFlow, which takes seconds

    export_run(**vars(asked))
    return 0


if __name__ == "__main__":
    sys.exit(report_errors(main))
