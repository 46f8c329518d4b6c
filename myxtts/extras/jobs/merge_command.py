"""`myxtts merge`: runs that began with the same weights → one run with their mean weights.

The exit code is 1 if the merged weights were measured to be worse than the best input; the new run
then has the weights of that input.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.config.parser import CommandParser, add_flag, add_switch
from myxtts.extras.jobs.merge import merge

NAME = "merge"
HELP = "Average the weights of runs that began with the same weights."
EXTRA = "train"


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog, HELP)
    several = "two or more folders of checkpoints, or of runs (their best checkpoint, or newest)"
    add_flag(parser, "--checkpoints", several, Path, "INPUT", nargs="+", required=True)
    add_flag(parser, "--output", "folder of the new run", Path, "RUN", required=True)
    weights = "weight of each input; by default the duration of the speech that it was trained on"
    add_flag(parser, "--weights", weights, float, "W", nargs="+")
    corpus = "corpus of the new run; by default the first input's"
    add_flag(parser, "--train-data", corpus, metavar="CORPUS")
    validation = "validation corpus of the new run; it and its inputs are first measured on it"
    add_flag(parser, "--val-data", validation, metavar="CORPUS")
    root = "folder to which paths in CSV and TSV files are relative"
    add_flag(parser, "--audio-root", root, metavar="DIR")
    listing = "CSV file of utterances of these corpora to leave out, as `inspect` writes"
    add_flag(parser, "--exclude", listing, metavar="FILE")
    others = "also merge inputs with different speakers or different first weights"
    add_switch(parser, "--force", others)
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    names = "train_data", "val_data", "audio_root", "exclude"
    given = {name: getattr(options, name) for name in names}
    corpora = {name: value for name, value in given.items() if value is not None}
    is_mean = merge(options.checkpoints, options.output, corpora, options.weights, options.force)
    return 0 if is_mean else 1
