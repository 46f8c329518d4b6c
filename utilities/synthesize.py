"""Speak with a trained run.

python utilities/synthesize.py --run runs/demo --text "…" --reference some.wav --out hello.wav
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.cli import bounded, report_errors
from myxtts.errors import DataError
from myxtts.synthesis.speech_file import write_speech


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speak with a trained run.")
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--text", help="what to say")
    text.add_argument("--text-file", metavar="FILE", type=Path, help="file of what to say, UTF-8; stdin without both")
    parser.add_argument("--out", type=Path, default=Path("speech.wav"), help="file to write: .wav, .flac or .ogg")
    parser.add_argument("--language", help="language of the text; needed where the run has several")
    parser.add_argument(
        "--reference",
        dest="references",
        metavar="FILE",
        type=Path,
        nargs="*",
        default=[],
        help="audio files of the voice, each half a second or more; the learned voice without any",
    )
    options = parser.add_argument_group("manner", "how it is said; what is not given is the run's own")
    options.add_argument("--speed", type=bounded(float, 0.25, 4.0), help="2 is twice as fast (0.25 to 4)")
    options.add_argument(
        "--pitch", dest="pitch_semitones", metavar="SEMITONES", type=bounded(float, -12.0, 12.0), help="-12 to 12"
    )
    options.add_argument(
        "--energy",
        dest="energy_db",
        metavar="DB",
        type=bounded(float, -12.0, 12.0),
        help="louder or softer speech (-12 to 12)",
    )
    options.add_argument(
        "--steps", dest="ode_steps", type=bounded(int, 1, 1000), help="from noise to speech; more are finer and slower"
    )
    options.add_argument(
        "--guidance", type=bounded(float, 0.0, 10.0), help="stress on text and voice (0 to 10); 1 is plain and quicker"
    )
    options.add_argument(
        "--seed", type=bounded(int, 0, 2**31 - 1), help="of the noise; the same gives the same .wav or .flac"
    )
    parser.add_argument("--iterations", type=bounded(int, 1, 1000), help="of Griffin-Lim (30 by default)")
    return parser.parse_args(arguments)


def read_text(text: str | None, file: Path | None) -> str:
    """The text that is asked for: given, in a file, or on stdin.

    Raises:
        DataError: there is none, or it is no UTF-8.
    """
    if text is not None:
        return text
    if file is None and sys.stdin.isatty():
        raise DataError("there is no text. Give it by --text, by --text-file or on stdin.")
    try:
        content = sys.stdin.buffer.read() if file is None else file.read_bytes()
        return content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 at byte {error.start}"
        raise DataError(
            f"the text in {file or 'stdin'} cannot be read: {reason}. Give a text file in UTF-8."
        ) from error


def main(arguments: list[str] | None = None) -> int:
    asked = vars(parse(arguments))
    text = read_text(asked.pop("text"), asked.pop("text_file"))
    write_speech(text=text, **asked)
    return 0


if __name__ == "__main__":
    sys.exit(report_errors(main))
