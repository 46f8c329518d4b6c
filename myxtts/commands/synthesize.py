"""`myxtts synthesize`: text and reference recordings → a sound file."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

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
    text.add_argument("--text", help="the text; by default stdin")
    text.add_argument("--text-file", metavar="FILE", type=Path, help="UTF-8 file with the text")
    sound = parser.add_mutually_exclusive_group()
    out_help = "file to write: .wav, .flac or .ogg (default speech.wav)"
    sound.add_argument("--out", type=Path, default=Path("speech.wav"), help=out_help)
    stream_help = "write WAV to stdout instead, sentence by sentence; the log is on stderr"
    sound.add_argument("--stream", action="store_true", help=stream_help)
    add_checkpoint_flag(parser)
    parser.add_argument("--language", help="language of the text; required if the run has several")
    files: dict[str, Any] = {"metavar": "FILE", "type": Path, "nargs": "+", "action": "extend"}
    reference_help = "recordings of the speaker, each of half a second or longer"
    parser.add_argument("--reference", dest="references", default=[], **files, help=reference_help)
    about = "How the text is spoken. The defaults are the settings of the run."
    add = parser.add_argument_group("synthesis", about).add_argument
    add("--speed", type=bounded(float, 0.25, 4.0), help="2 is twice as fast (0.25 to 4)")
    octave = bounded(float, -12.0, 12.0)
    pitch_help = "raise or lower the pitch (-12 to 12)"
    add("--pitch", dest="pitch_semitones", metavar="SEMITONES", type=octave, help=pitch_help)
    energy_help = "speak louder or softer (-12 to 12)"
    add("--energy", dest="energy_db", metavar="DB", type=octave, help=energy_help)
    add("--ode-steps", type=bounded(int, 1, 1000), help="steps from noise to speech")
    guidance_help = "classifier-free guidance (0 to 10); 1 turns it off and is faster"
    add("--guidance", type=bounded(float, 0.0, 10.0), help=guidance_help)
    seed_help = "seed of the noise; the same seed gives the same .wav or .flac"
    add("--seed", type=bounded(int, 0, 2**31 - 1), help=seed_help)
    add_vocoder_flags(parser)
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = vars(parse(argv, prog))
    is_stream = options.pop("stream")
    sound = sound_on_stdout() if is_stream else nullcontext(options["out"])
    with sound as options["out"]:
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
