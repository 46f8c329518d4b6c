"""`myxtts say`: a text → sound, with a voice that exists. Without TensorFlow."""

import argparse
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from myxtts.base.console import sound_on_stdout
from myxtts.base.errors import ConfigError
from myxtts.commands.synthesize import add_times_flag, read_text
from myxtts.config import parser as flags
from myxtts.config.parser import add_flag, add_switch
from myxtts.text.times import check_times_file

NAME = "say"
HELP = "Say a text with a voice that exists, or write it to a file; needs no TensorFlow."
# Programs that play a WAV file, and their flags.
PLAYERS = (
    ("pw-play",),
    ("paplay",),
    ("aplay", "-q"),
    ("afplay",),
    ("ffplay", "-nodisp", "-autoexit"),
)

log = logging.getLogger(__name__)


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = flags.CommandParser(prog, HELP, epilog="`myxtts voices` lists the voices.")
    parser.add_argument("text", nargs="?", help="the text; by default stdin", metavar="TEXT")
    add_flag(parser, "--text-file", "UTF-8 file with the text", Path, "FILE")
    flags.add_voice_flag(parser)
    add_flag(parser, "--language", "language of the text (default: by its letters)")
    add_flag(parser, "--speaker", "speaker of a voice that has several (default: its first)")
    sound = parser.add_mutually_exclusive_group()
    out = "file to write: .wav, .flac or .ogg (default: play it, or write it where nothing plays)"
    add_flag(sound, "--out", out, Path)
    stream = "write WAV to stdout instead, sentence by sentence; the log is on stderr"
    add_switch(sound, "--stream", stream)
    add_times_flag(parser)
    flags.add_option(parser, "--speed", "speed", "2 is twice as fast")
    options = parser.parse(argv)
    if options.text is not None and options.text_file is not None:
        raise ConfigError("a text and --text-file were both given. Leave out one of them.")
    return options


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    with sound_on_stdout() if options.stream else nullcontext() as pipe:
        text = read_text(options.text, options.text_file)
        check_times_file(options.times)
        from myxtts.speak.sound_file import write_sentences
        from myxtts.tasks.tts.speakers import open_speaker

        speaker = open_speaker(options.voice, text, options.language)
        if options.times and not speaker.has_times:
            raise ConfigError(
                f"--times {options.times} was given, but the graph of {speaker.name} has no second"
                " output with the durations of its phonemes. Export the voice again with this"
                " version, choose another --voice, or leave out --times."
            )
        sentences = speaker.speak(text, options.speaker or "", options.speed or 1.0)
        if pipe is not None:
            write_sentences(pipe, sentences, options.times)
            return 0
        player = find_player() if options.out is None else None
        word = re.search(r"[^\W_]+", text)
        out = options.out or Path(f"{word[0].lower()[:40]}.wav" if word else "speech.wav")
        with tempfile.TemporaryDirectory() if player else nullcontext() as folder:
            path = Path(folder) / "speech.wav" if folder else out
            write_sentences(path, sentences, options.times)
            if player is None:
                log.info("sound          %s", path)
            elif subprocess.run([*player, str(path)], stderr=subprocess.DEVNULL).returncode:
                shutil.copy(path, out)
                log.info("sound          %s cannot play; it is in %s", player[0], out)
    return 0


def find_player() -> tuple[str, ...] | None:
    """Return the program that plays sound on this machine; None without one or without a card."""
    if sys.platform == "linux" and not any(Path("/dev/snd").glob("pcm*p")):
        return None
    return next((player for player in PLAYERS if shutil.which(player[0])), None)
