"""`myxtts voices`: the voices that are installed, and those that can be fetched."""

import argparse
from collections.abc import Sequence

from myxtts.config import parser as flags

NAME = "voices"
HELP = "List the voices that are installed, and those that can be fetched."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = flags.CommandParser(prog, HELP)
    parser.add_argument("names", nargs="*", help="fetch these, so that they speak offline")
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    from myxtts.speak.voices import known_voices, voice_named, voices

    for voice in map(voice_named, options.names):
        print(f"{voice.name}: {voice.path}")
    if options.names:
        return 0
    if not voices():
        print(known_voices())
    for voice in voices().values():
        where = (
            f"installed in {voice.folder}" if voice.folder else f"{voice.mb:.0f} MB, {voice.url}"
        )
        print(f"{voice.name:<16} {' '.join(voice.languages):<10} {voice.licence}; {voice.consent}")
        speakers = f"speakers: {', '.join(voice.speakers) or 'one'}"
        if voice.is_mute:
            speakers = "for --init-from and synthesize"
        print(f"{'':<16} {speakers}; {where}")
    return 0
