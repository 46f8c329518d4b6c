"""How many Arabic words get their vowels rightly, which are not written.

    pip install text2tashkeel dengjen-tashkeel-py mishkal
    python benchmarks/arabic_vowels.py WikiNews_data_gt.txt

The file has a vowelled sentence in each line: WikiNews (in the repository abjadai/catt, Apache-2.0,
the folder benchmarking/all_models_WikiNews_data), CATT_data_gt.txt beside it, or test.txt of
AliOsm/arabic-text-diacritization (Tashkeela, MIT). A word is right if its marks are those of the
file, but for marks that repeat a letter, and heard right if espeak-ng reads it as that of the file.
Both are counted with and without the ending of the case. The sentences are 60, evenly spaced, of 4
to 30 words. The lexicon has the commonest form of each word in the others.
"""

import re
import sys
import time
import unicodedata
from collections import Counter
from collections.abc import Callable
from difflib import SequenceMatcher
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._words import commonest, evenly, heard, replaced, sample_arguments

MARKS = "\u064b-\u0652\u0670"
# What letters imply: sukun, vowels before their letters, and shadda behind the article.
IMPLIED = (
    ("[ـْٰ]", ""),
    ("َ(ّ?)(?=[اى])", r"\1"),
    ("ِ(ّ?)(?=ي(?![ً-ّ]))", r"\1"),
    ("ُ(ّ?)(?=و(?![ً-ّ]))", r"\1"),
    ("اً", "ًا"),
    ("([اٱ])[َُِ]", r"\1"),
    ("ٱ", "ا"),
    ("^((?:[وفبكل][َِ]?)*ا?ل[ء-ي][ً-ِ]?)ّ", r"\1"),
)


def main() -> None:
    args = sample_arguments(__doc__)
    lines, others = evenly(args.file.read_text("utf-8").splitlines(), str, args.count)
    print("| tool | words | without endings | heard | heard without endings | ms a sentence |")
    for name, read in tools(lines, others).items():
        counts: Counter = Counter()
        for line in lines:
            compare(line, read, counts)
        shares = " | ".join(
            f"{100 * counts[kind] / counts['all']:.1f} %"
            for kind in ("words", "stems", "heard", "heard stems")
        )
        print(f"| {name} | {shares} | {1000 * counts['seconds'] / len(lines):.0f} |")
    print(f"{counts['all']} words")


def tools(lines: list[str], others: list[str]) -> dict[str, Callable[[str], str]]:
    """Return what gives vowels to a text, by name."""
    lexicon = commonest((bare(word), word) for line in others for word in line.split())
    vowelled = {bare(line): line for line in lines}
    made: dict[str, Callable[[str], str]] = {"none": str, "vowelled text": vowelled.__getitem__}
    made["lexicon"] = lambda text: " ".join(lexicon.get(word, word) for word in text.split())
    if find_spec("text2tashkeel"):
        made["text2tashkeel"] = import_module("text2tashkeel").Diacritizer().diacritize
    if find_spec("dengjen_tashkeel_py"):
        made["dengjen-tashkeel-py"] = import_module("dengjen_tashkeel_py").tashkeel
    if find_spec("mishkal"):
        made["mishkal"] = import_module("mishkal.tashkeel").TashkeelClass().tashkeel
    if find_spec("diacritize") and find_spec("torch"):
        diacritizer = import_module("diacritize").Diacritizer.from_pretrained()
        made["arabic-diacritizer"] = diacritizer.diacritize
    return made


def compare(line: str, read: Callable[[str], str], counts: Counter) -> None:
    """Count the words of a vowelled line that a tool gets right without its vowels."""
    text = bare(line)
    start = time.perf_counter()
    made = read(text)
    counts["seconds"] += time.perf_counter() - start
    stem = partial(re.sub, f"[{MARKS}]+$|(?<=.)ًا$", "")
    counts["all"] += len(needed(line))
    counts["words"] += equal(needed(line), needed(made))
    counts["stems"] += equal([*map(stem, needed(line))], [*map(stem, needed(made))])
    sounds, made_sounds = heard(line, "ar").split(), heard(made, "ar").split()
    without = partial(re.sub, "[aiu]n?$", "")
    counts["heard"] += equal(sounds, made_sounds)
    counts["heard stems"] += equal([*map(without, sounds)], [*map(without, made_sounds)])


def bare(text: str) -> str:
    return re.sub(f"[{MARKS}]", "", text)


def needed(text: str) -> list[str]:
    """Return words with the marks that their letters do not imply."""
    text = re.sub(f"[^\\w\\s{MARKS}]", " ", unicodedata.normalize("NFC", text))
    return [replaced(word, IMPLIED) for word in text.split()]


def equal(words: list[str], others: list[str]) -> int:
    blocks = SequenceMatcher(None, words, others, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks)


if __name__ == "__main__":
    main()
