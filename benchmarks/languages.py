"""Which languages espeak-ng reads: everyday words of each, searched for letters that are named.

python benchmarks/languages.py             # docs/reference/languages.md
python benchmarks/languages.py --verbose   # the phonemes of each word as well

The words are in benchmarks/common_words.tsv, written from our own knowledge; a language that is
written in two scripts has two lines. A language is refused if a text of these words is an error of
the front end, as in training and synthesis.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.errors import DataError
from myxtts.text import espeak
from myxtts.text.frontend import TextFrontend
from myxtts.text.languages import letters_by_script, names_of, scripts_of

WORDS = Path(__file__).with_name("common_words.tsv")
PAGE = Path(__file__).resolve().parents[1] / "docs/reference/languages.md"
NUMBERS = "1 2 3 10 24 123"
FRONTEND = TextFrontend()
HEAD = """# Languages

What `--language` accepts with the front end of phonemes, and whether espeak-ng reads it. `python benchmarks/languages.py > docs/reference/languages.md`
writes this page from everyday words ([common_words.tsv](../../benchmarks/common_words.tsv), written from our own knowledge, twenty where we know
the language well). "Read" means that no word had a letter that espeak-ng names or leaves out, and nothing about the quality of the
rules; "refused" that such a text is an error in training, inspection and synthesis. `--text-frontend characters` accepts any language.

| code | script | words | read | digits |
|---|---|---:|---|---|"""


class Verdict(NamedTuple):
    """What became of the words of a language in one script."""

    code: str
    script: str
    words: int
    result: str
    digits: str


def word_lists() -> Iterator[tuple[str, str]]:
    """Yield a code and the words of each line."""
    for line in WORDS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            code, words = line.split("\t")
            yield code, words


def codes() -> list[str]:
    """Return the codes that a run accepts."""
    accepted = []
    for code in sorted(espeak.shared()._voices):
        try:
            espeak.shared().check_language(code)
            accepted.append(code)
        except DataError:
            continue
    return accepted


def verdict(code: str, words: str) -> Verdict:
    """Return whether a text of these words is read."""
    script = names_of(letters_by_script([words]))
    count = len(words.split())
    try:
        named = FRONTEND.stages(words, code).named
        result = f"yes, but for {', '.join(named)}" if named else "yes"
    except DataError as error:
        result = f"refused: {str(error).partition('. ')[0]}"
    return Verdict(code, script, count, result, _digits(code))


def _digits(code: str) -> str:
    try:
        FRONTEND.stages(NUMBERS, code)
    except DataError:
        return "no"
    return "yes"


def verdicts() -> Iterator[Verdict]:
    """Yield a verdict for each code and script; a dialect has the words of its language."""
    lists = [*word_lists()]
    for code in codes():
        own = [words for base, words in lists if base == code]
        base = code.split("-")[0]
        texts = own or [words for other, words in lists if other == base]
        base = {"zh": "cmn", "no": "nb", "hbs": "sr"}.get(base, base)
        texts = texts or [words for other, words in lists if other == base]
        yield from (verdict(code, words) for words in texts)
        if not texts:
            yield Verdict(code, names_of(scripts_of(code)), 0, "no words known", _digits(code))


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
        print("| `{}` | {} | {} | {} | {} |".format(*row))
    results = Counter(row.result.split(":")[0].split(",")[0] for row in found)
    summary = ", ".join(f"{count} {result}" for result, count in results.most_common())
    print(f"\n{len(found)} rows of {len({row.code for row in found})} codes: {summary}.")


if __name__ == "__main__":
    main()
