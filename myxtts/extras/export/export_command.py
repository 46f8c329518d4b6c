"""`myxtts export`: a run → files that synthesize speech without this package."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.config import parser as flags
from myxtts.config.parser import CommandParser, add_flag

NAME = "export"
HELP = "Export a trained run as a TensorFlow SavedModel, ONNX, LiteRT or a page."
EXTRA = "train"


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog, HELP)
    add_flag(parser, "--run", "folder of the run", Path, required=True)
    add_flag(parser, "--out", "folder to create", Path, required=True)
    forms = (
        "savedmodel for TensorFlow, onnx for Piper, sherpa-onnx and others, web for browsers,"
        " litert for phones"
    )
    choices = "savedmodel", "onnx", "web", "litert"
    add_flag(parser, "--format", forms, choices=choices, default="savedmodel", dest="form")
    flags.add_checkpoint_flag(parser)
    flags.add_vocoder_flags(parser)
    group = parser.add_argument_group("onnx, web, litert", "What a voice in these formats speaks.")
    add_flag(group, "--language", "language of its texts; required if its corpus has several")
    flags.add_references_flag(group, flags.SPEAKERS)
    flags.add_precision_flag(group)
    modules = "web: where npm has installed what the page needs (default node_modules)"
    default = Path("node_modules")
    add_flag(parser, "--node-modules", modules, Path, "FOLDER", default=default)
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    # Imports TensorFlow, which takes seconds.
    from myxtts.extras.export.export import export_run

    export_run(**vars(options))
    return 0
