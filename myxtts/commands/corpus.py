"""`myxtts corpus`: make the demo corpus."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from myxtts.config.parser import CommandParser, add_flag, bounded
from myxtts.corpus.demo_corpus import MAX_SPEAKERS, grammar_languages, make_demo_corpus

NAME = "corpus"
HELP = "Make a speech corpus with espeak-ng, for trials and tests."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog, HELP, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    known = ", ".join(grammar_languages())
    add_flag(parser, "--out", "folder to create", Path, default=Path("data/demo"))
    add_flag(parser, "--utterances", "number of utterances", bounded(int, 1), default=400)
    add_flag(parser, "--languages", f"any of {known}", nargs="+", default=["en"])
    speakers = "number of speakers; each speaks all languages"
    add_flag(parser, "--speakers", speakers, bounded(int, 1, MAX_SPEAKERS), default=1)
    first = "first speaker; another one makes other speakers"
    add_flag(parser, "--first-speaker", first, bounded(int, 0, MAX_SPEAKERS - 1), default=0)
    seed = "seed for the choice and order of the sentences"
    add_flag(parser, "--seed", seed, int, default=0)
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    with tqdm(total=options.utterances, unit=" utterances", disable=None) as bar:
        is_new = make_demo_corpus(**vars(options), progress=bar.update)
    made = "made" if is_new else "already complete,"
    print(f"{options.out}: {made} {options.utterances} utterances.")
    return 0
