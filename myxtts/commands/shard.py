"""`myxtts shard`: a corpus → CSV files of disjoint shards, and one of held-out utterances."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.commands.parser import CommandParser, bounded
from myxtts.config.schema import Config, DataConfig, TrainingConfig
from myxtts.files import make_folder
from myxtts.local_sgd.shards import split_corpus

NAME = "shard"
HELP = "Split a corpus into disjoint shards of about equal duration, balanced over speakers and languages."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog=prog, description=HELP)
    parser.add_argument(
        "--input", type=Path, required=True, help="corpus, in any form that `train --train-data` accepts"
    )
    parser.add_argument("--shards", type=bounded(int, 2, 1024), default=2, help="number of shards (default 2)")
    parser.add_argument("--out", type=Path, required=True, help="folder for shard-0.csv, …, train.csv, held_out.csv")
    parser.add_argument(
        "--validation-fraction",
        type=bounded(float, 0.0, 0.9),
        default=0.05,
        help="fraction of the utterances for held_out.csv, which are in no shard (default 0.05)",
    )
    parser.add_argument("--seed", type=bounded(int, 0, 2**31 - 1), default=0, help="seed for the held-out utterances")
    parser.add_argument("--language", default="en", help="language of rows without one (default en)")
    parser.add_argument(
        "--min-seconds", type=bounded(float, 0.05), default=0.3, help="shortest utterance (default 0.3)"
    )
    parser.add_argument(
        "--max-seconds", type=bounded(float, 0.1, 120.0), default=20.0, help="longest utterance (default 20)"
    )
    parser.add_argument(
        "--max-rejected",
        type=bounded(float, 0.0, 1.0),
        default=0.05,
        help="abort above this fraction of unusable rows (default 0.05)",
    )
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    make_folder(options.out, "--out")
    data = DataConfig(
        train_data=str(options.input),
        validation_fraction=options.validation_fraction,
        language=options.language,
        min_seconds=options.min_seconds,
        max_seconds=options.max_seconds,
        max_rejected=options.max_rejected,
        text_frontend="characters",  # fast, and the CSV files do not depend on it
    )
    shards = split_corpus(Config(data=data, training=TrainingConfig(seed=options.seed)), options.out, options.shards)
    print(shards.table)
    held_out = f" --val-data {shards.held_out}" if shards.held_out else " --validate-every 0 --sample-every 0"
    print(f"\nTrain on shard 0:\n  myxtts train --train-data {shards.shards[0]}{held_out} \\")
    print(f"      --audio-root {shards.audio_root} --run shard0 --init-from START")
    return 0
