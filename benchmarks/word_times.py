"""Compare the times of phones that `myxtts align` writes with the labels of a corpus.

    python -m myxtts align --run runs/demo --train-data data/demo --times json --out times
    python benchmarks/word_times.py times data/demo/alignments.jsonl
    python utilities/human/corpora.py festvox-ru  # train a voice of it
    python -m myxtts align --run runs/ru --train-data FESTVOX --times json --out times_ru
    python benchmarks/word_times.py times_ru FESTVOX/lab

FESTVOX is a folder of Festvox, with etc/txt.done.data and lab/. Phones are matched by the fewest
edits of their letters, vowels alike; boundaries between two phones that are matched, and between a
phone and a pause, are compared. A pause of less than 50 ms is none. The labels of Festvox are the
work of another program, so they tell agreement. Those of espeak-ng are exact; its reliable
boundaries are those that benchmarks/voice.py measures.
"""

import argparse
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rapidfuzz.distance import Levenshtein

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.base.console import report_errors
from myxtts.text.times import LEAST_PAUSE_S

FESTVOX = {"ch": "tʃ", "sch": "ʃ", "sh": "ʃ", "zh": "ʒ", "c": "ts", "h": "x", "hh": "x", "pau": ""}
SAME = str.maketrans("ɕʑɭɡ", "ʃzlɡ", "ˈˌːˑʲ^\"'")
CONSONANTS = "bcdfghjklmnpqrstvwxzðŋɡɣɲɹɾʃʒʔθʋβçɸχʁħʕɫʎɻɰɳɱɴʈɖɟɢʝ"


class Letter(NamedTuple):
    """A letter of a phone, with the phone's begin if it is the first, and its end if the last."""

    name: str
    phone: str
    start_s: float | None
    end_s: float | None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("times", type=Path, help="folder of `myxtts align --times json`")
    parser.add_argument("labels", type=Path, help="alignments.jsonl, or a folder of .lab files")
    options = parser.parse_args()
    labels = dict(read_labels(options.labels))
    errors_ms = defaultdict(list)
    for file in sorted(options.times.rglob("*.json")):
        segments = json.loads(file.read_text("utf-8"))["segments"]
        words = itertools.chain.from_iterable(of["words"] for of in segments)
        phones = itertools.chain.from_iterable(word["phones"] for word in words)
        spans = ((of["phone"], of["start"], of["end"]) for of in phones)
        compare(letters(spans), letters(labels[file.stem]), errors_ms)
    print(f"{sum(map(len, labels.values()))} labels\n")
    print("| boundary | count | signed median, ms | absolute median | ≤ 20 ms | ≤ 50 ms |")
    print("|---|---|---|---|---|---|")
    for kind, values in errors_ms.items():
        size = np.abs(values)
        medians = f"{np.median(values):+.1f} | {np.median(size):.1f}"
        print(f"| {kind} | {len(size)} | {medians} | {(size <= 20).mean():.0%} |", end=" ")
        print(f"{(size <= 50).mean():.0%} |")
    return 0


def read_labels(path: Path) -> Iterator[tuple[str, list[tuple[str, float, float]]]]:
    """Yield the name of each recording, and its phones with their begin and end in seconds."""
    for file in sorted(path.glob("*.lab")):
        rows = [line.split() for line in file.read_text("latin-1").splitlines()]
        # The end, a colour, and the phone.
        rows = [("0", "", "")] + [row for row in rows if len(row) == 3]
        phones = [FESTVOX.get(row[2], row[2][:1]) for row in rows[1:]]
        ends = itertools.pairwise(float(row[0]) for row in rows)
        yield file.stem, [(phone, *times) for phone, times in zip(phones, ends, strict=True)]
    if path.is_file():
        for line in map(json.loads, path.read_text("utf-8").splitlines()):
            yield line["id"], [tuple(of) for of in line["phonemes"]]


def letters(phones: Iterable[tuple[str, float, float]]) -> list[Letter]:
    found = []
    for phone, start_s, end_s in phones:
        names = phone.translate(SAME).strip()
        for name in names:
            found.append(Letter(name if name in CONSONANTS else "V", phone, None, None))
        if names:
            found[-len(names)] = found[-len(names)]._replace(start_s=start_s)
            found[-1] = found[-1]._replace(end_s=end_s)
    return found


def compare(ours: Sequence[Letter], theirs: Sequence[Letter], errors_ms: dict) -> None:
    """Add the errors of the boundaries of a recording by their kind."""
    from benchmarks._boundaries import Boundary, phoneme_class  # imports TensorFlow

    place: dict[int, int] = {}
    for edit in Levenshtein.opcodes([of.name for of in theirs], [of.name for of in ours]):
        if edit.tag == "equal":
            place |= zip(range(edit.src_start, edit.src_end), itertools.count(edit.dest_start))
    for index, (left, right) in enumerate(itertools.pairwise(theirs)):
        first, second = place.get(index, -1), place.get(index + 1, -1)
        if first < 0 or second != first + 1:
            continue
        times = left.end_s, right.start_s, ours[first].end_s, ours[second].start_s
        if None in times:
            continue
        end_s, start_s, our_end_s, our_start_s = times
        classes = phoneme_class(left.phone), phoneme_class(right.phone)
        found = [("between", *classes, (our_end_s + our_start_s - end_s - start_s) / 2)]
        if start_s - end_s >= LEAST_PAUSE_S:
            found = [("offset", classes[0], "silence", our_end_s - end_s)]
            found.append(("onset", "silence", classes[1], our_start_s - start_s))
        for kind, before, after, error_s in found:
            is_reliable = Boundary(before, after, 0.0, 0, False).is_reliable
            for name in (kind, "all", "all reliable")[: 2 + is_reliable]:
                errors_ms[name].append(1000 * error_s)


if __name__ == "__main__":
    sys.exit(report_errors(main))
