"""`myxtts export`: a run → a TensorFlow SavedModel that synthesizes speech without this package."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.commands.parser import CommandParser, add_checkpoint_flag, add_vocoder_flags

NAME = "export"
HELP = "Export a trained run as a TensorFlow SavedModel."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog=prog, description=HELP)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    parser.add_argument("--out", type=Path, required=True, help="folder to create")
    add_checkpoint_flag(parser)
    add_vocoder_flags(parser)
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    # Imports TensorFlow, which takes seconds.
    from myxtts.synthesis.export import export_run

    export_run(**vars(options))
    return 0
