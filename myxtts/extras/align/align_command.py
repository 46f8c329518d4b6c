"""`myxtts align`: a corpus → the times of its words; long recordings → a corpus."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.base.errors import ConfigError
from myxtts.config import parser as flags
from myxtts.config.parser import add_flag
from myxtts.config.settings_parser import add_columns_flag
from myxtts.text.times import FORMS

NAME = "align"
HELP = "Find when the words of a corpus, or the sentences of a plain text, are spoken."
EXTRA = "train"

# The flags of each form, of which the first is needed.
FORMS_OF_USE = {
    "train_data": ("run", "checkpoint", "root", "columns", "language", "times"),
    "text": ("audio", "run", "checkpoint", "language", "speaker"),
    "asr": ("audio", "language", "speaker", "keep"),
}


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = flags.CommandParser(prog, HELP)
    run = "folder of the run of a voice; with --text it may be left out"
    add_flag(parser, "--run", run, Path)
    either = parser.add_mutually_exclusive_group(required=True)
    corpus = "corpus with texts, as for `train`; also recordings with SRT or WebVTT beside them"
    add_flag(either, "--train-data", corpus, Path)
    text = "what is read in --audio: a file, or a folder of files with the names of the recordings"
    add_flag(either, "--text", text, Path)
    asr = "recogniser that writes a text for --audio: a run, pocketsphinx or onnx:MODEL of onnx-asr"
    add_flag(either, "--asr", asr, Path, "RUN")
    add_flag(parser, "--audio", "long recording, or a folder of recordings", Path)
    add_flag(parser, "--speaker", "name of who speaks in --audio")
    keep = "share of what --asr heard that is kept, the surest (default 0.5)"
    add_flag(parser, "--keep", keep, flags.bounded(float, 0.01, 1.0))
    add_flag(parser, "--audio-root", "folder that contains all its audio", Path, "DIR", dest="root")
    add_columns_flag(parser, "--train-data")
    add_flag(parser, "--language", "language of rows without one; by default that of the run")
    flags.add_checkpoint_flag(parser)
    form = "form of the files, one for each recording of --train-data (default TextGrid)"
    add_flag(parser, "--times", form, choices=FORMS)
    out = "folder for what is written: times and alignment.csv, or the corpus metadata.jsonl"
    add_flag(parser, "--out", out, Path, "DIR", required=True)
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = {name: value for name, value in vars(parse(argv, prog)).items() if value}
    form = next(name for name in FORMS_OF_USE if name in options)
    needed, *_ = used = FORMS_OF_USE[form]
    flag = f"--{form.replace('_', '-')}"
    if needed not in options:
        raise ConfigError(f"with {flag}, --{needed} is needed, but was not given. Give it.")
    for name in options.keys() - {form, "out", *used}:
        other = name.replace("root", "audio-root")
        raise ConfigError(f"--{other} was given, but {flag} does not use it. Leave out one.")
    # These import TensorFlow, which takes seconds.
    if form == "train_data":
        from myxtts.extras.align.alignment import align_corpus

        align_corpus(**options)
    elif form == "text":
        from myxtts.extras.align.recordings import align_recordings

        align_recordings(**options)
    else:
        from myxtts.extras.align.transcribed import transcribe_recordings

        transcribe_recordings(**options)
    return 0
