"""Which languages espeak-ng reads: everyday words of each, searched for letters that are named.

python benchmarks/languages.py             # the table of docs/reference/languages.md
python benchmarks/languages.py --verbose   # the phonemes of each word

The words are in tests/common_words.tsv, written from our own knowledge; a language that is written
in two scripts has two lines. A language is refused if a text of these words is an error of the
front end, as in training and synthesis.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes.languages import line, verdicts, word_lists
from myxtts.text import espeak

HEAD = "| code | script | words | read | digits | also by |\n|---|---|---:|---|---|---|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--verbose", action="store_true", help="print the phonemes of each word")
    options = parser.parse_args()
    if options.verbose:
        for code, words in word_lists():
            for word in words.split():
                print(code, word, espeak.shared().marked_phonemes(word, code), sep="\t")
        return
    print(HEAD)
    found = [*verdicts()]
    for row in found:
        print(line(row))
    results = Counter(row.result.split(":")[0].split(",")[0] for row in found)
    summary = ", ".join(f"{count} {result}" for result, count in results.most_common())
    print(f"\n{len(found)} rows of {len({row.code for row in found})} codes: {summary}.")


if __name__ == "__main__":
    main()
