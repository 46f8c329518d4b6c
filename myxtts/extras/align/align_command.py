"""`myxtts align`: a corpus → the times of its words, and the texts that do not fit."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.config import parser as flags
from myxtts.config.parser import add_flag
from myxtts.config.settings_parser import add_columns_flag
from myxtts.text.times import FORMS

NAME = "align"
HELP = "Find when the words of a corpus are spoken, by the aligner of a trained voice."
EXTRA = "train"


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = flags.CommandParser(prog, HELP)
    add_flag(parser, "--run", "folder of the run of a voice", Path, required=True)
    corpus = "corpus with texts, as for `train`; also recordings with SRT or WebVTT beside them"
    add_flag(parser, "--train-data", corpus, Path, required=True)
    add_flag(parser, "--audio-root", "folder that contains all its audio", Path, "DIR", dest="root")
    add_columns_flag(parser, "--train-data")
    add_flag(parser, "--language", "language of rows without one; by default that of the run")
    flags.add_checkpoint_flag(parser)
    form = "form of the files, one for each recording (default TextGrid)"
    add_flag(parser, "--times", form, choices=FORMS, default="TextGrid")
    out = "folder for them, alignment.csv and rejected.csv"
    add_flag(parser, "--out", out, Path, "DIR", required=True)
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = vars(parse(argv, prog))
    # Imports TensorFlow, which takes seconds.
    from myxtts.extras.align.alignment import align_corpus

    align_corpus(**options)
    return 0
