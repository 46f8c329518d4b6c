"""Measure the boundaries of phonemes in a voice's alignment of its held-out recordings.

    python -m myxtts corpus --out data/demo
    python train_main.py --config configs/demo.yaml --max-steps 1000 --run demo_1000
    python benchmarks/boundaries.py runs/demo_1000

The true times are those that espeak-ng reports, so the corpus is one of make_demo_corpus.py. Kinds
of boundaries whose true times are unreliable are left out, see benchmarks/phoneme_times.py.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.base.console import report_errors
from myxtts.config.parser import bounded

KINDS = {
    "boundary": "all",
    "boundary_onset": "where silence ends",
    "boundary_offset": "where silence begins",
    "boundary_between": "between two sounds",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=Path, help="run of a voice")
    parser.add_argument("--utterances", type=bounded(int, 1), default=50, help="at most")
    options = parser.parse_args()
    from benchmarks._boundaries import run_figures  # imports TensorFlow

    figures, note = run_figures(options.run, options.utterances)
    print("| boundaries | signed median, ms | absolute median, ms | within 20 ms |")
    print("|---|---|---|---|")
    for kind, label in KINDS.items():
        if f"{kind}_within_20_ms" in figures:
            signed, absolute = (figures[f"{kind}_{of}_median"] for of in ("signed", "absolute"))
            within = figures[f"{kind}_within_20_ms"]
            print(f"| {label} | {signed:+.1f} | {absolute:.1f} | {within:.0%} |")
    print(f"\n- {note}")
    return 0


if __name__ == "__main__":
    sys.exit(report_errors(main))
