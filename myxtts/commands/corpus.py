"""`myxtts corpus`: make the demo corpus."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from myxtts.commands.parser import CommandParser
from myxtts.data.demo_corpus import grammar_languages, make_demo_corpus

NAME = "corpus"
HELP = "Make a speech corpus with espeak-ng, for trials and tests."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(
        prog=prog, description=HELP, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("data/demo"), help="folder to create")
    parser.add_argument("--utterances", type=int, default=400, help="number of utterances")
    parser.add_argument(
        "--languages", nargs="+", default=["en"], help=f"any of {', '.join(grammar_languages())}"
    )
    parser.add_argument(
        "--speakers", type=int, default=1, help="number of speakers; each speaks all languages"
    )
    parser.add_argument(
        "--first-speaker",
        type=int,
        default=0,
        help="first speaker; another one makes other speakers",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed for the choice and order of the sentences"
    )
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    with tqdm(total=options.utterances, unit=" utterances", disable=None) as bar:
        is_new = make_demo_corpus(**vars(options), progress=bar.update)
    made = "made" if is_new else "already complete,"
    print(f"{options.out}: {made} {options.utterances} utterances.")
    return 0
