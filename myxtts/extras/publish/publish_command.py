"""`myxtts publish`: a run → a folder with weights, exported voice, samples and a model card."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from myxtts.config import parser as flags
from myxtts.config.parser import CommandParser, add_flag, add_switch

NAME = "publish"
HELP = "Write a voice as a folder for others: weights, ONNX, samples and a model card."
EXTRA = "train"


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog, HELP)
    add_flag(parser, "--run", "folder of the run of a voice", Path, required=True)
    add_flag(parser, "--out", "folder to create", Path, required=True)
    texts: dict[str, Any] = {"action": "append", "dest": "texts", "required": True}
    add_flag(parser, "--text", "text of a sample; can be repeated", **texts)
    flags.add_checkpoint_flag(parser)
    flags.add_vocoder_flag(parser)
    add_flag(parser, "--language", "language of the texts; required if its corpus has several")
    flags.add_references_flag(parser, flags.SPEAKERS)
    flags.add_precision_flag(parser)
    add_flag(parser, "--licence", "licence of the weights, for the model card, such as Apache-2.0")
    add_flag(parser, "--consent", "who has agreed to what, for the model card")
    weights = "leave out the weights, from which others can start: a quarter of the size"
    add_switch(parser, "--without-weights", weights)
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    # Imports TensorFlow, which takes seconds.
    from myxtts.extras.publish.publish import publish_run

    publish_run(**vars(options))
    return 0
