"""`myxtts shard`: a corpus → CSV files of disjoint shards, and one of held-out utterances."""

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from myxtts.base.files import make_folder
from myxtts.config import parser as parsers
from myxtts.config.flags import SETTINGS, command_line, marked, turned_off, with_values
from myxtts.config.schema import IN_SHARDS, OFF_IN_TRIAL, Config
from myxtts.config.settings_parser import add_settings, read_settings
from myxtts.extras.jobs.shards import HELD_OUT, shard_file, split_corpus

NAME = "shard"
HELP = "Split a corpus into disjoint shards of about equal duration, balanced over speakers."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> tuple[Config, argparse.Namespace]:
    parser = parsers.CommandParser(prog, HELP)
    corpus = "corpus, in any form that `train --train-data` accepts"
    parsers.add_flag(parser, "--input", corpus, Path, required=True)
    count = parsers.bounded(int, 2, 1024)
    parsers.add_flag(parser, "--shards", "number of shards (default 2)", count, default=2)
    out = "folder for shard-0.csv, …, train.csv, held_out.csv"
    parsers.add_flag(parser, "--out", out, Path, required=True)
    # The command sets the others: --input is the corpus, and the whole of it is split.
    own = ("train_data", "val_data", "text_frontend", "text_normaliser", "lexicon")
    names = [setting.name for setting in marked(IN_SHARDS) if setting.name not in own]
    add_settings(parser, [*names, "max_rejected"])
    return read_settings(parser, argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    config, options = parse(argv, prog)
    make_folder(options.out, "--out")
    # Characters are fast. The front end decides only which texts are too long for their recordings,
    # and which texts held out have a symbol that all others lack: these are left out.
    data = {"train_data": str(options.input), "text_frontend": "characters"}
    config = with_values(turned_off(config, OFF_IN_TRIAL), data)
    shards = split_corpus(config, options.out, options.shards)
    print(shards.table)
    first, held_out = options.out / shard_file(0), options.out / HELD_OUT
    flags = ["--train-data", str(first), "--audio-root", str(shards.audio_root)]
    if held_out.exists():
        flags += ["--val-data", str(held_out)]
    else:
        flags += ["--validate-every", "0", "--sample-every", "0"]
    for name in ("min_seconds", "max_seconds"):
        if (limit := getattr(config.data, name)) != SETTINGS[name].default:
            flags += [SETTINGS[name].flag, f"{limit:g}"]
    print(f"\nTrain on shard 0:\n  {command_line('train')} {shlex.join(flags)} \\")
    print("      --run shard0 --init-from START")
    print("START is a run that the jobs of all shards start from: docs/guides/local_sgd.md")
    return 0
