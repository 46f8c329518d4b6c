"""`myxtts merge`: runs that began with the same weights → one run with their mean weights.

The exit code is 1 if the merged weights were measured to be worse than the best input; the new run
then has the weights of that input.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.commands.parser import CommandParser
from myxtts.local_sgd.merge import CorpusOverrides, merge

NAME = "merge"
HELP = "Average the weights of runs that began with the same weights."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog=prog, description=HELP)
    parser.add_argument(
        "--checkpoints",
        metavar="INPUT",
        type=Path,
        nargs="+",
        required=True,
        help=(
            "two or more folders of checkpoints, or of runs (their best checkpoint, or else the"
            " newest)"
        ),
    )
    parser.add_argument(
        "--output", metavar="RUN", type=Path, required=True, help="folder of the new run"
    )
    parser.add_argument(
        "--weights",
        metavar="W",
        type=float,
        nargs="+",
        help="weight of each input; by default the duration of the speech that it was trained on",
    )
    parser.add_argument(
        "--train-data", metavar="CORPUS", help="corpus of the new run; by default the first input's"
    )
    parser.add_argument(
        "--val-data",
        metavar="CORPUS",
        help=(
            "validation corpus of the new run; the new run and its inputs are first measured on it"
        ),
    )
    parser.add_argument(
        "--audio-root",
        metavar="DIR",
        help="folder to which paths in CSV and TSV files are relative",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="also merge inputs with different speakers or different first weights",
    )
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    corpora = CorpusOverrides(options.train_data, options.val_data, options.audio_root)
    is_mean = merge(options.checkpoints, options.output, corpora, options.weights, options.force)
    return 0 if is_mean else 1
