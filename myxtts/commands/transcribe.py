"""`myxtts transcribe`: recordings → their texts."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.audio.audio_file import RECORDING, check_recording
from myxtts.base.errors import ConfigError
from myxtts.base.files import check_writable, make_folder
from myxtts.config import parser as flags
from myxtts.config.parser import add_flag, bounded
from myxtts.corpus.audio_folder import suffix_of
from myxtts.text.times import FORMS, times_files

NAME = "transcribe"
HELP = "Transcribe recordings with a trained recogniser."
EXTRA = "train"


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = flags.CommandParser(prog, HELP)
    add_flag(parser, "--run", "folder of the run of a recogniser", Path, required=True)
    add_flag(parser, "files", "audio files; each makes a line of output", Path, "FILE", nargs="+")
    flags.add_checkpoint_flag(parser)
    beam = "prefixes that the beam search keeps; 0, the default, decodes greedily"
    add_flag(parser, "--beam-width", beam, bounded(int, 0, 1000), "N", default=0)
    flags.add_json_flag(parser)
    form = "also write the times of the words of each file in this form"
    add_flag(parser, "--times", form, choices=FORMS)
    out = "folder for --times (default: the working folder)"
    add_flag(parser, "--out", out, Path, "DIR")
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = vars(parse(argv, prog))
    form, out = options.pop("times"), options.pop("out")
    if form and options["beam_width"]:
        raise ConfigError("--times is for greedy decoding. Leave out --beam-width.")
    if out and not form:
        raise ConfigError("--out needs --times. Leave it out.")
    check_files(options["files"], options["json_file"])
    if form:
        make_folder(out or Path(), "--out")
        options["times"] = times_files(options["files"], form, out or Path())
    # Imports TensorFlow, which takes seconds.
    from myxtts.tasks.asr.transcriber import write_transcripts

    write_transcripts(**options)
    return 0


def check_files(files: Sequence[Path], json_file: Path | None) -> None:
    """Raise ConfigError if the JSON file cannot be written, and DataError for an unusable file."""
    check_writable("--json", json_file)
    if json_file is not None and suffix_of(json_file.name):
        raise ConfigError(
            f"--json {json_file} was given, but that is the name of a recording, which would be"
            " replaced. Name a JSON file after --json, and then the recordings."
        )
    for file in files:
        check_recording(file, RECORDING)
