"""`myxtts export`: a run → a TensorFlow SavedModel that synthesizes speech without this package."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.commands.parser import CommandParser, add_checkpoint_flag, add_flag, add_vocoder_flags

NAME = "export"
HELP = "Export a trained run as a TensorFlow SavedModel."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog, HELP)
    add_flag(parser, "--run", "folder of the run", Path, required=True)
    add_flag(parser, "--out", "folder to create", Path, required=True)
    add_checkpoint_flag(parser)
    add_vocoder_flags(parser)
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    # Imports TensorFlow, which takes seconds.
    from myxtts.synthesis.export import export_run

    export_run(**vars(options))
    return 0
