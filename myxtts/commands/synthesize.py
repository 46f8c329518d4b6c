"""`myxtts synthesize`: text and reference recordings → a sound file."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from myxtts.base.console import sound_on_stdout
from myxtts.base.errors import DataError
from myxtts.base.files import decode_text
from myxtts.config import parser as flags
from myxtts.config.parser import add_flag, add_switch
from myxtts.text.times import FORMS

NAME = "synthesize"
HELP = "Synthesize speech from a text with a trained run."
EXTRA = "train"


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = flags.CommandParser(prog, HELP)
    run = "folder of the run, or name of a voice that `myxtts voices` lists"
    add_flag(parser, "--run", run, Path, required=True)
    text = parser.add_mutually_exclusive_group()
    add_flag(text, "--text", "the text; by default stdin")
    add_flag(text, "--text-file", "UTF-8 file with the text", Path, "FILE")
    sound = parser.add_mutually_exclusive_group()
    out = "file to write: .wav, .flac or .ogg (default speech.wav)"
    add_flag(sound, "--out", out, Path, default=Path("speech.wav"))
    stream = "write WAV to stdout instead, sentence by sentence; the log is on stderr"
    add_switch(sound, "--stream", stream)
    add_times_flag(parser)
    flags.add_checkpoint_flag(parser)
    add_flag(parser, "--language", "language of the text; required if its corpus has several")
    accent = "sound like a speaker of this language of the run (default: the language of the text)"
    add_flag(parser, "--accent", accent, metavar="LANGUAGE")
    flags.add_lexicon_flag(parser)
    reference = "recordings of the speaker, each of half a second or longer"
    several = {"nargs": "+", "action": "extend", "dest": "references", "default": []}
    add_flag(parser, "--reference", reference, Path, "FILE", **several)
    about = "How the text is spoken. The defaults are the settings of the run."
    group = parser.add_argument_group("synthesis", about)
    add = partial(flags.add_option, group)
    add("--speed", "speed", "2 is twice as fast")
    add("--pitch", "pitch_semitones", "raise or lower the pitch", metavar="SEMITONES")
    add("--energy", "energy_db", "speak louder or softer", metavar="DB")
    add("--ode-steps", "ode_steps", "steps from noise to speech")
    add("--guidance", "guidance", "classifier-free guidance; 1 turns it off and is faster")
    variety = "variety of pitch and energy, and half of it of durations; 0 is the mean"
    add("--variety", "variety", variety)
    add("--seed", "seed", "seed of the noise; the same seed gives the same .wav or .flac")
    flags.add_vocoder_flags(parser)
    return parser.parse(argv)


def add_times_flag(parser: flags.CommandParser) -> None:
    times = f"file for the times of words and phonemes: {', '.join(FORMS)}"
    add_flag(parser, "--times", times, Path, "FILE")


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = vars(parse(argv, prog))
    is_stream = options.pop("stream")
    sound = sound_on_stdout() if is_stream else nullcontext(options["out"])
    with sound as options["out"]:
        text = read_text(options.pop("text"), options.pop("text_file"))
        from myxtts.tasks.tts.speech_file import write_speech

        write_speech(text=text, **options)
    return 0


def read_text(text: str | None, file: Path | None) -> str:
    """Return the text that was given, or else the content of the file or of stdin.

    Raises DataError if there is none, or it is not UTF-8.
    """
    if text is not None:
        return decode_text(lambda: text.encode(errors="surrogateescape"), "--text")
    if file is not None:
        return decode_text(file.read_bytes, str(file))
    if sys.stdin is None or sys.stdin.isatty():  # None: `<&-` in a shell
        raise DataError("there is no text. Give it with --text, with --text-file or on stdin.")
    return decode_text(sys.stdin.buffer.read, "stdin")
