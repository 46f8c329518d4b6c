"""Makes a speech corpus by espeak-ng: python utilities/make_demo_corpus.py --out data/demo --utterances 400"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tqdm import tqdm

from myxtts.commands.cli import report_errors
from myxtts.data.demo_corpus import grammar_languages, make_demo_corpus


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("data/demo"), help="folder to make")
    parser.add_argument("--utterances", type=int, default=400, help="utterances in all")
    parser.add_argument("--languages", nargs="+", default=["en"], help=f"any of {', '.join(grammar_languages())}")
    parser.add_argument("--speakers", type=int, default=1, help="speakers, each of all the languages")
    parser.add_argument("--first-speaker", type=int, default=0, help="number of the first, to make others than before")
    parser.add_argument("--seed", type=int, default=0, help="choice and order of the sentences")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = parse(arguments)
    with tqdm(total=asked.utterances, unit=" utterances", disable=None) as bar:
        made = make_demo_corpus(**vars(asked), progress=bar.update)
    print(f"{asked.out}: {'made' if made else 'already complete,'} {asked.utterances} utterances.")
    return 0


if __name__ == "__main__":
    sys.exit(report_errors(main))
