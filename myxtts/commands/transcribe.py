"""`myxtts transcribe`: recordings → their texts, or a corpus → error rates."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.commands import parser as flags
from myxtts.commands.parser import add_flag, bounded
from myxtts.data.audio_file import RECORDING, check_recording
from myxtts.data.audio_folder import suffix_of
from myxtts.errors import ConfigError
from myxtts.files import check_writable, make_folder
from myxtts.text.times import FORMS, times_files

NAME = "transcribe"
HELP = "Transcribe recordings, or measure the error rates of a trained recogniser."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = flags.CommandParser(prog, HELP)
    add_flag(parser, "--run", "folder of the run of a recogniser", Path, required=True)
    add_flag(parser, "files", "audio files; each makes a line of output", Path, "FILE", nargs="*")
    corpus = "corpus with texts, instead of files: print a table of error rates"
    add_flag(parser, "--corpus", corpus, Path)
    add_flag(parser, "--audio-root", "folder that contains all audio of --corpus", Path, "DIR")
    flags.add_columns_flag(parser, "--corpus")
    flags.add_checkpoint_flag(parser)
    beam = "prefixes that the beam search keeps; 0, the default, decodes greedily"
    add_flag(parser, "--beam-width", beam, bounded(int, 0, 1000), "N", default=0)
    flags.add_json_flag(parser)
    form = "also write the times of the words of each file in this form"
    add_flag(parser, "--times", form, choices=FORMS)
    out = "folder for --times (default: the working folder); with --corpus, for files"
    out += " (default: RUN/evaluation/CHECKPOINT-CORPUS)"
    add_flag(parser, "--out", out, Path, "DIR")
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = vars(parse(argv, prog))
    files, corpus = options.pop("files"), options.pop("corpus")
    if bool(files) == (corpus is not None):
        raise ConfigError("files or a --corpus can be transcribed. Give one of the two.")
    of_corpus = {name: options.pop(name) for name in ("audio_root", "columns", "out")}
    form = options.pop("times")
    if form and (corpus or options["beam_width"]):
        raise ConfigError(
            "--times is for files and greedy decoding. Leave out --corpus, --beam-width."
        )
    if corpus is None:
        out = of_corpus.pop("out") if form else None
        if any(of_corpus.values()):
            raise ConfigError("--audio-root, --columns and --out need --corpus. Leave them out.")
        check_files(files, options["json_file"])
        if form:
            make_folder(out or Path(), "--out")
            options["times"] = times_files(files, form, out or Path())
        # Imports TensorFlow, which takes seconds.
        from myxtts.recognition.transcriber import write_transcripts

        write_transcripts(files=files, **options)
        return 0
    of_corpus["columns"] = tuple(of_corpus["columns"])
    from myxtts.data.metadata_file import read_corpus

    # Reports mistakes before TensorFlow is imported, which takes seconds.
    read_corpus(corpus, "en", of_corpus["audio_root"], columns=of_corpus["columns"])
    from myxtts.evaluation.evaluate import evaluate_run
    from myxtts.evaluation.held_out import EvaluationOptions

    run, checkpoint = options.pop("run"), options.pop("checkpoint")
    evaluation = EvaluationOptions(data=corpus, **of_corpus, **options)
    evaluate_run(run, checkpoint, evaluation, task="asr")
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
        check_recording(file, *RECORDING)
