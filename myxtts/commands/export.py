"""`myxtts export`: a run → files that synthesize speech without this package."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from myxtts.commands.parser import CommandParser, add_checkpoint_flag, add_flag, add_vocoder_flags

NAME = "export"
HELP = "Export a trained run as a TensorFlow SavedModel or as ONNX."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog, HELP)
    add_flag(parser, "--run", "folder of the run", Path, required=True)
    add_flag(parser, "--out", "folder to create", Path, required=True)
    forms = "savedmodel for TensorFlow, or onnx for Piper, sherpa-onnx and others"
    add_flag(parser, "--format", forms, choices=("savedmodel", "onnx"), default="savedmodel")
    add_checkpoint_flag(parser)
    add_vocoder_flags(parser)
    group = parser.add_argument_group("onnx", "What a voice in ONNX speaks.")
    add_flag(group, "--language", "language of its texts; required if the run has several")
    speakers = (
        "a speaker and a recording of half a second or longer; by default those of the corpus"
    )
    several: dict[str, Any] = {
        "action": "append",
        "dest": "references",
        "default": [],
        "metavar": "NAME=FILE",
    }
    add_flag(group, "--reference", speakers, speaker_reference, **several)
    return parser.parse(argv)


def speaker_reference(text: str) -> tuple[str, Path]:
    """Return the name and the path of NAME=FILE."""
    name, _, path = text.partition("=")
    if not name or not path:
        found = f"is {text!r}, but must be NAME=FILE, such as anna=anna.wav."
        raise argparse.ArgumentTypeError(found)
    return name, Path(path)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    # Imports TensorFlow, which takes seconds.
    from myxtts.synthesis.export import export_run

    values = vars(options)
    references: dict[str, list[Path]] = {}
    for name, path in values.pop("references"):
        references.setdefault(name, []).append(path)
    export_run(form=values.pop("format"), references=references, **values)
    return 0
