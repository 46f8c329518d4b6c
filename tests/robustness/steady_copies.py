"""Count what a steady step copies and waits for, on virtual GPUs:

    python tests/robustness/steady_copies.py
    python tests/robustness/steady_copies.py --rows voice toy

Trains rows of virtual_table.py for SHORTER and for LONGER steps, without reports, validation and
samples; the difference of all counts is divided by that of the steps. A copy "to host" may stop a
GPU. Batches of the same shapes are made and trained on in both.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.robustness import virtual_table  # noqa: E402

SHORTER, LONGER = 8, 16
ROWS = ("toy", "toy, two replicas", "voice", "recogniser", "vocoder")
KINDS = ("copies", "blocking copies", "host waits", "drains")
STEPS = "--buckets 1 --batch-size 2 --log-every 1000 --warmup-steps 2 --max-steps"
QUIET = "--validation-fraction 0.25 --sample-every 0 --validate-every"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", nargs="+", choices=virtual_table.ROWS, default=ROWS)
    options = parser.parse_args()
    print("| row | per step, by kind |\n|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in options.rows:
            shorter, longer = (counts(Path(folder), name, steps) for steps in (SHORTER, LONGER))
            per_step = {
                kind: (longer[kind] - shorter.get(kind, 0)) / (LONGER - SHORTER) for kind in longer
            }
            found = [f"{kind} {count:g}" for kind, count in per_step.items() if count]
            print(f"| {name} | {', '.join(found)} |", flush=True)
    return 0


def counts(folder: Path, name: str, steps: int) -> dict[str, int]:
    """Train a row for some steps in a process with virtual GPUs; return its counts by kind."""
    stats = folder / f"{virtual_table.folder_name(name)}-{steps}.tsv"
    child = f"from tests.robustness.steady_copies import *; train(*{[str(folder), name, steps]})"
    arguments = ["--gpus", str(virtual_table.GPUS), "--stats", str(stats), "--", "-c", child]
    subprocess.run(
        [sys.executable, "-m", "tests.virtual_gpu", *arguments],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    lines = (line.split("\t") for line in stats.read_text().splitlines())
    return {f"{kind} {what}": int(count) for kind, what, count in lines if kind in KINDS}


def train(folder: str, name: str, steps: int) -> None:
    from tests.sine_corpus import write_corpus

    side = virtual_table.folder_name(f"{name} {steps}")
    place = Path(folder)
    (place / side).mkdir()
    # Utterances of one length.
    write_corpus(place / "corpus", (0.8,) * 13)
    row = virtual_table.ROWS[name]
    arguments = row.arguments.replace(virtual_table.OBSERVED, "")
    rows = virtual_table.ROWS | {name: row._replace(arguments=arguments)}
    with (
        mock.patch.object(virtual_table, "ROWS", rows),
        mock.patch.object(virtual_table, "SHORT", f"{STEPS} {steps} {QUIET}"),
    ):
        sys.exit(virtual_table.run_row(name, side, place))


if __name__ == "__main__":
    sys.exit(main())
