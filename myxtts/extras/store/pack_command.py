"""`myxtts pack`: a corpus → tar shards and one index, in a folder or an object store."""

import argparse
import re
from collections.abc import Sequence

from myxtts.base.errors import ConfigError
from myxtts.config import parser as parsers
from myxtts.config.schema import Config
from myxtts.config.settings_parser import add_settings, read_settings

NAME = "pack"
HELP = "Pack a corpus into tar shards and one index, from which training starts at once."
SETTINGS_OF_PACKING = """
train_data audio_root columns max_rejected language task trim
text_frontend text_normaliser lexicon
""".split()


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> tuple[Config, argparse.Namespace]:
    parser = parsers.CommandParser(prog, HELP)
    parsers.add_flag(
        parser, "--out", "folder or s3://BUCKET/NAME of the packed corpus", required=True
    )
    meaning = "pack slice I of N, from 0/N on, of several machines"
    parsers.add_flag(parser, "--slice", meaning, metavar="I/N", default="0/1")
    parsers.add_switch(parser, "--join", "join the indices of all slices that were packed")
    add_settings(parser, SETTINGS_OF_PACKING)
    config, options = read_settings(parser, argv)
    number = re.fullmatch(r"(\d{1,5})/(\d{1,5})", options.slice)
    options.part, options.parts = map(int, number.groups() if number else (1, 0))
    if options.part >= options.parts:
        raise ConfigError(f"--slice {options.slice} was given, but must be I/N, from 0/N to N-1/N.")
    if options.join == bool(config.data.train_data):
        raise ConfigError(
            "--train-data names what is packed, and --join joins what was packed: give one of them."
        )
    return config, options


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    config, options = parse(argv, prog)
    from myxtts.extras.store.packing import join, pack  # imports NumPy

    if options.join:
        join(options.out)
    else:
        pack(config, options.out, options.part, options.parts)
    return 0
