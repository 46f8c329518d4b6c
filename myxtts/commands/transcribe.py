"""`myxtts transcribe`: recordings → their texts, or a corpus → error rates."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.commands.parser import (
    CommandParser,
    add_checkpoint_flag,
    add_columns_flag,
    add_json_flag,
    bounded,
)
from myxtts.errors import ConfigError

NAME = "transcribe"
HELP = "Transcribe recordings, or measure the error rates of a trained recogniser."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog=prog, description=HELP)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run of a recogniser")
    add = parser.add_argument
    files_help = "audio files; each makes one line of output"
    add("files", metavar="FILE", type=Path, nargs="*", help=files_help)
    corpus_help = "corpus with texts, instead of files: print a table of error rates"
    add("--corpus", type=Path, help=corpus_help)
    add("--audio-root", metavar="DIR", type=Path, help="folder that contains all audio of --corpus")
    add_columns_flag(parser, "--corpus")
    add_checkpoint_flag(parser)
    beam = bounded(int, 0, 1000)
    beam_help = "prefixes that the beam search keeps; 0, the default, decodes greedily"
    add("--beam-width", metavar="N", type=beam, default=0, help=beam_help)
    add_json_flag(parser)
    out_help = "with --corpus: folder for files (default: RUN/evaluation/CHECKPOINT-CORPUS)"
    add("--out", metavar="DIR", type=Path, help=out_help)
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = vars(parse(argv, prog))
    files = options.pop("files")
    corpus = options.pop("corpus")
    audio_root = options.pop("audio_root")
    if bool(files) == (corpus is not None):
        given = "both were given" if files else "neither was given"
        raise ConfigError(
            f"files or a --corpus can be transcribed, but {given}. Give one of the two."
        )
    columns = tuple(options.pop("columns"))
    if (audio_root is not None or columns) and corpus is None:
        raise ConfigError(
            "--audio-root and --columns describe a corpus, but there is no --corpus. Leave them"
            " out."
        )
    out = options.pop("out")
    if out is not None and corpus is None:
        raise ConfigError(
            "--out is the folder for files about a corpus, but there is no --corpus. Leave it out."
        )
    if corpus is None:
        from myxtts.recognition.transcribe_files import write_transcripts

        write_transcripts(files=files, **options)
        return 0
    from myxtts.data.metadata_file import read_corpus

    # Reports mistakes before TensorFlow is imported, which takes seconds.
    read_corpus(corpus, "en", audio_root, columns=columns)
    from myxtts.evaluation.evaluate import evaluate_run
    from myxtts.evaluation.options import EvaluationOptions

    run, checkpoint = options.pop("run"), options.pop("checkpoint")
    evaluation = EvaluationOptions(
        data=corpus, audio_root=audio_root, columns=columns, out=out, **options
    )
    evaluate_run(run, checkpoint, evaluation, task="asr")
    return 0
