"""`myxtts synthesize`: text and reference recordings → a sound file."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from myxtts.commands.console import sound_on_stdout
from myxtts.commands.parser import CommandParser, add_checkpoint_flag, add_vocoder_flags, bounded
from myxtts.errors import DataError
from myxtts.files import decode_text, read_bounded, read_file

NAME = "synthesize"
HELP = "Synthesize speech from a text with a trained run."
MAX_TEXT_BYTES = 5_000_000  # a long novel


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog=prog, description=HELP)
    parser.add_argument("--run", type=Path, required=True, help="folder of the run")
    text = parser.add_mutually_exclusive_group()
    text.add_argument("--text", help="the text")
    text.add_argument(
        "--text-file",
        metavar="FILE",
        type=Path,
        help="UTF-8 file with the text (default: stdin if neither --text nor --text-file is given)",
    )
    sound = parser.add_mutually_exclusive_group()
    sound.add_argument(
        "--out",
        type=Path,
        default=Path("speech.wav"),
        help="file to write: .wav, .flac or .ogg (default speech.wav)",
    )
    sound.add_argument(
        "--stream",
        action="store_true",
        help="write WAV to stdout instead, sentence by sentence; the log is on stderr",
    )
    add_checkpoint_flag(parser)
    parser.add_argument("--language", help="language of the text; required if the run has several")
    parser.add_argument(
        "--reference",
        dest="references",
        metavar="FILE",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        help=(
            "recordings of the speaker, each half a second or longer; without them, the model uses"
            " its learned voice"
        ),
    )
    group = parser.add_argument_group(
        "synthesis", "How the text is spoken. The defaults are the settings of the run."
    )
    group.add_argument(
        "--speed", type=bounded(float, 0.25, 4.0), help="2 is twice as fast (0.25 to 4)"
    )
    group.add_argument(
        "--pitch",
        dest="pitch_semitones",
        metavar="SEMITONES",
        type=bounded(float, -12.0, 12.0),
        help="raise or lower the pitch (-12 to 12)",
    )
    group.add_argument(
        "--energy",
        dest="energy_db",
        metavar="DB",
        type=bounded(float, -12.0, 12.0),
        help="speak louder or softer (-12 to 12)",
    )
    group.add_argument(
        "--ode-steps",
        type=bounded(int, 1, 1000),
        help="steps from noise to speech; more steps are slower",
    )
    group.add_argument(
        "--guidance",
        type=bounded(float, 0.0, 10.0),
        help=(
            "classifier-free guidance towards text and speaker (0 to 10); 1 turns it off and is"
            " faster"
        ),
    )
    group.add_argument(
        "--seed",
        type=bounded(int, 0, 2**31 - 1),
        help="seed of the noise; the same seed gives the same .wav or .flac",
    )
    add_vocoder_flags(parser)
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = vars(parse(argv, prog))
    with (
        sound_on_stdout() if options.pop("stream") else nullcontext(options["out"]) as options[
            "out"
        ]
    ):
        text = read_text(options.pop("text"), options.pop("text_file"))
        from myxtts.synthesis.speech_file import write_speech

        write_speech(text=text, **options)
    return 0


def read_text(text: str | None, file: Path | None) -> str:
    """Return the text that was given, or else the content of the file or of stdin.

    Raises:
        DataError: there is no text, it is not UTF-8, it is too large, or the file is a pipe or a
            device.
    """
    if text is not None:
        return decode_text(lambda: text.encode(errors="surrogateescape"), "--text")
    if file is None and (sys.stdin is None or sys.stdin.isatty()):  # None: `<&-` in a shell
        raise DataError("there is no text. Give it with --text, with --text-file or on stdin.")
    if file is None:
        return decode_text(lambda: read_bounded(sys.stdin.buffer, MAX_TEXT_BYTES, "stdin"), "stdin")
    return decode_text(lambda: read_file(file, MAX_TEXT_BYTES), str(file))
