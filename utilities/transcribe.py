"""Write down what is said in recordings, or measure how well a run does that.

python utilities/transcribe.py --run runs/asr one.wav two.flac
python utilities/transcribe.py --run runs/asr --corpus data/others
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.cli import bounded, report_errors
from myxtts.data.metadata_file import read_corpus
from myxtts.errors import ConfigError
from myxtts.recognition.transcribe_files import write_transcripts


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write down what is said in recordings, or measure how well a run does that."
    )
    parser.add_argument("--run", type=Path, required=True, help="folder of the run of a recogniser")
    parser.add_argument("files", metavar="FILE", type=Path, nargs="*", help="audio files; each gives a line")
    parser.add_argument(
        "--corpus", type=Path, help="in place of files, recordings with their texts: a table of error rates"
    )
    parser.add_argument("--checkpoint", help="such as step-002000; the best, or the newest, by default")
    parser.add_argument(
        "--beam-width",
        metavar="N",
        type=bounded(int, 0, 1000),
        default=0,
        help="beginnings of a text that the search keeps; 0, the default, takes the likeliest symbol at each time",
    )
    parser.add_argument("--json", dest="json_file", metavar="FILE", type=Path, help="file for the same as JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = vars(parse(arguments))
    files, corpus = asked.pop("files"), asked.pop("corpus")
    if bool(files) == (corpus is not None):
        found = "both were given" if files else "neither was given"
        raise ConfigError(f"files or a --corpus can be transcribed, but {found}. Give one of the two.")
    if corpus is None:
        write_transcripts(files=files, **asked)
        return 0
    read_corpus(corpus, "en")  # so that mistakes are told before TensorFlow is imported, which takes seconds
    from myxtts.evaluation.asr_score import write_asr_score

    write_asr_score(data=corpus, **asked)
    return 0


if __name__ == "__main__":
    sys.exit(report_errors(main))
