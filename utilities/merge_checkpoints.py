"""One run out of several that began with the same weights: the mean of their weights.

python utilities/merge_checkpoints.py --checkpoints runs/gpu0 runs/gpu1 --output runs/merged
python utilities/merge_checkpoints.py --checkpoints runs/gpu0 runs/gpu1 --output runs/merged --val-data held_out.csv

The exit code is 1 where the mean was measured to be worse than its best part, whose weights the run then has.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.cli import report_errors
from myxtts.local_sgd.merge import Corpora, merge


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Merge runs that began with the same weights into one.")
    parser.add_argument(
        "--checkpoints",
        metavar="PART",
        type=Path,
        nargs="+",
        required=True,
        help="two or more folders, of runs (the best checkpoint, or the newest) or of checkpoints",
    )
    parser.add_argument("--output", metavar="RUN", type=Path, required=True, help="folder of the new run")
    parser.add_argument(
        "--weights", metavar="W", type=float, nargs="+", help="of each part; the speech it was trained on by default"
    )
    parser.add_argument("--train-data", metavar="CORPUS", help="of the new run; that of the first part by default")
    parser.add_argument(
        "--val-data", metavar="CORPUS", help="of the new run, and to measure it and its parts on before it is written"
    )
    parser.add_argument("--audio-root", metavar="DIR", help="folder that the paths of CSV and TSV files start from")
    parser.add_argument(
        "--force", action="store_true", help="merge parts with other speakers or other first weights, too"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = parse(arguments)
    corpora = Corpora(asked.train_data, asked.val_data, asked.audio_root)
    return 0 if merge(asked.checkpoints, asked.output, corpora, asked.weights, asked.force) else 1


if __name__ == "__main__":
    sys.exit(report_errors(main))
