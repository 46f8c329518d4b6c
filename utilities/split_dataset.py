"""Split a corpus into disjoint parts of about equal length, alike in speakers and languages.

python utilities/split_dataset.py --input data/processed/train.csv --shards 2 --out data/parts
python utilities/split_dataset.py --input corpora/LJSpeech-1.1 --shards 4 --out data/parts --validation-fraction 0.02
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.cli import bounded, report_errors
from myxtts.config.schema import Config, DataConfig, TrainingConfig
from myxtts.local_sgd.shards import split_corpus


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Split a corpus into disjoint parts of about equal length, alike in speakers and languages."
    )
    parser.add_argument("--input", type=Path, required=True, help="corpus, as --train-data of train_main.py takes it")
    parser.add_argument("--shards", type=bounded(int, 2, 1024), default=2, help="how many (default 2)")
    parser.add_argument("--out", type=Path, required=True, help="folder for shard-0.csv, …, train.csv, held_out.csv")
    parser.add_argument(
        "--validation-fraction",
        type=bounded(float, 0.0, 0.9),
        default=0.05,
        help="share of the utterances for held_out.csv, which is in no part (default 0.05)",
    )
    parser.add_argument("--seed", type=bounded(int, 0, 2**31 - 1), default=0, help="chooses what is held out")
    parser.add_argument("--language", default="en", help="of rows that name none (default en)")
    parser.add_argument("--min-seconds", type=bounded(float, 0.05), default=0.3, help="of an utterance (default 0.3)")
    parser.add_argument("--max-seconds", type=bounded(float, 0.1, 120.0), default=20.0, help="likewise (default 20)")
    parser.add_argument("--max-rejected", type=bounded(float, 0.0, 1.0), default=0.05, help="share (default 0.05)")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = parse(arguments)
    data = DataConfig(
        train_data=str(asked.input),
        validation_fraction=asked.validation_fraction,
        language=asked.language,
        min_seconds=asked.min_seconds,
        max_seconds=asked.max_seconds,
        max_rejected=asked.max_rejected,
        text_frontend="characters",  # quick, and nothing of it is written
    )
    corpus_shards = split_corpus(Config(data=data, training=TrainingConfig(seed=asked.seed)), asked.out, asked.shards)
    print(corpus_shards.table)
    held_out = (
        f" --val-data {corpus_shards.held_out}" if corpus_shards.held_out else " --validate-every 0 --sample-every 0"
    )
    print(f"\nTrain on shard 0:\n  python train_main.py --train-data {corpus_shards.shards[0]}{held_out} \\")
    print(f"      --audio-root {corpus_shards.audio_root} --run shard0 --init-from START")
    return 0


if __name__ == "__main__":
    sys.exit(report_errors(main))
