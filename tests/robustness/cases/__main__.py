"""Give the program what people met: odd texts, metadata, sound files and requests.

    python -m tests.robustness.cases [--only TEXT] [--clips FOLDER]

Each case is an input and the value that is right, in the tables of this folder. All inputs are made
here, of a demo corpus. A line is printed for each case, and the exit code is 1 if one is wrong.
"""

import argparse
import logging
import re
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.robustness.cases import (
    Lab,
    files,
    found_in,
    metadata,
    processes,
    server,
    synthesis,
    texts,
)

SUBJECTS = texts, metadata, files, synthesis, server, processes
SHOWN = 200


def is_value(found: str, expected: str) -> bool:
    """Whether a value is the expected one, or has the expected pattern."""
    return found == expected or re.fullmatch(expected, found, re.DOTALL) is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their line")
    clips = "short recordings of speech, of which none is music"
    parser.add_argument("--clips", type=Path, metavar="FOLDER", help=clips)
    options = parser.parse_args()
    logging.getLogger("myxtts").addHandler(logging.NullHandler())
    warnings.simplefilter("ignore", FutureWarning)  # a pattern that begins with [[
    counts: Counter[tuple[str, bool]] = Counter()
    with tempfile.TemporaryDirectory(prefix="cases-") as folder:
        lab = Lab(Path(folder), options.clips)
        for subject in SUBJECTS:
            name = subject.__name__.rpartition(".")[2]
            for case in subject.cases(lab):
                line = f"{name} {case.kind}: {case.given!r}"
                if options.only not in line:
                    continue
                found = found_in(case)
                is_right = is_value(found, case.expected)
                counts[f"{name} {case.kind}", is_right] += 1
                expected = f"{case.expected!r}"[:SHOWN]
                verdict = f"ok    {line}: {expected}"
                if not is_right:
                    verdict = f"WRONG {line}: {expected}, but found {found!r}"
                print(verdict, flush=True)
    print()
    for kind in dict.fromkeys(kind for kind, _ in counts):
        print(f"{kind:40} {counts[kind, True]:4} ok {counts[kind, False]:4} wrong")
    wrong = sum(count for (_, is_right), count in counts.items() if not is_right)
    print(f"{counts.total()} cases, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
