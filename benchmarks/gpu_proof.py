"""Prove on this machine's GPUs what MyXTTS claims, in about ten minutes.

    python benchmarks/gpu_proof.py --out proof
    python benchmarks/gpu_proof.py --out proof --sections 3 4 --minutes 5
    python benchmarks/gpu_proof.py --out proof --simulate-gpus 2 --small    # tests the proof itself
    python benchmarks/gpu_proof.py --out proof --virtual-gpus 3 --small     # also tests it

Each section runs in a process of its own with a time limit, so that a crash, an error of a device
or a hang leaves the others alone. After each section its results are in OUT/section-N.json, its log
in OUT/section-N/log.txt, and the page OUT/proof.md is complete up to there. The page ends with all
claims, each with the figure found here, the figure that is expected, and whether it is met.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.proof.page import PAGE
from benchmarks.proof.runner import Run, failed, run_sections
from benchmarks.proof.section import Section
from myxtts.base.console import report_errors
from myxtts.base.errors import ConfigError
from myxtts.base.files import make_folder
from myxtts.config.parser import bounded
from myxtts.corpus.demo_corpus import make_demo_corpus
from myxtts.devicefeed.errors import PlacementError

SECTIONS = (
    Section(1, "benchmarks.proof.hardware", "What is here", 0.03),
    Section(2, "benchmarks.proof.operations", "Every operation", 0.22),
    Section(3, "benchmarks.proof.stages", "Stage times", 0.22),
    Section(4, "benchmarks.proof.placements", "Placements", 0.20),
    Section(5, "benchmarks.proof.threads", "Threads", 0.10),
    Section(6, "benchmarks.proof.costs", "Suspected costs", 0.08),
    Section(7, "benchmarks.proof.whole", "The whole", 0.15),
)
UTTERANCES, SMALL_UTTERANCES = 400, 24
COUNT_GPUS = "import tensorflow as tf; print('GPUs', len(tf.config.list_physical_devices('GPU')))"


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    end_s = time.monotonic() + 60.0 * options.minutes
    if options.small and not (options.simulate_gpus or options.virtual_gpus):
        raise ConfigError(
            "--small was given, which is for simulated or virtual GPUs. Add --simulate-gpus 2."
        )
    if options.virtual_gpus:
        use_virtual_gpus(options.virtual_gpus)
    make_folder(options.out, "--out")
    gpus = options.simulate_gpus or options.virtual_gpus or real_gpus()
    utterances = SMALL_UTTERANCES if options.small else UTTERANCES
    out = options.out.resolve()
    corpus = out / f"corpus-{utterances}"
    make_demo_corpus(corpus, utterances, ["en"], speakers=2, seed=0)
    kinds = bool(options.simulate_gpus), bool(options.virtual_gpus)
    run = Run(gpus, kinds[0], options.small, out, corpus, options.in_process, kinds[1])
    outcomes = run_sections(
        run, [section for section in SECTIONS if section.number in options.sections], end_s
    )
    print(f"wrote          {options.out / PAGE}")
    return int(any(map(failed, outcomes)))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    numbers = [section.number for section in SECTIONS]
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog=(
            "Exit code: 0 if all sections are complete and no claim is unmet, 1 otherwise, 2 for"
            " wrong use."
        ),
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("proof"), help="folder of the results (default proof)")
    add(
        "--sections",
        metavar="N",
        type=int,
        nargs="+",
        choices=numbers,
        default=numbers,
        help=f"some of {numbers}",
    )
    add(
        "--minutes",
        type=bounded(float, 0.1, 1440.0),
        default=10.0,
        help="time of all sections (default 10)",
    )
    kinds = parser.add_mutually_exclusive_group()
    for flag, meaning in (
        ("--simulate-gpus", "use N logical devices of the CPU"),
        ("--virtual-gpus", "use N virtual GPUs, which need g++: TensorFlow's GPU runtime on a CPU"),
    ):
        kinds.add_argument(flag, metavar="N", type=bounded(int, 1, 8), default=0, help=meaning)
    add("--small", action="store_true", help="smallest models and fewest steps, to test the proof")
    add(
        "--in-process",
        action="store_true",
        help="run all sections in this process, without time limits",
    )
    return parser.parse_args(argv)


def use_virtual_gpus(count: int) -> None:
    """Give this process and those that it starts so many virtual GPUs; TensorFlow has not started.

    Raises:
        PlacementError: they cannot be made here.
    """
    from tests.virtual_gpu import Unavailable, environment

    try:
        os.environ.update(environment(count))
    except Unavailable as reason:
        raise PlacementError(f"--virtual-gpus {count}: {reason}. Try --simulate-gpus 2.") from None


def real_gpus() -> int:
    """Return how many GPUs TensorFlow sees; asked in another process, since this one must not hold
    memory of them.

    Raises:
        PlacementError: there is none.
    """
    asked = subprocess.run([sys.executable, "-c", COUNT_GPUS], capture_output=True, text=True)
    count = next(
        (int(line.split()[1]) for line in asked.stdout.splitlines() if line.startswith("GPUs ")), 0
    )
    if not count:
        reasons = [line for line in asked.stderr.splitlines() if line.strip()]
        found = f"it reports: {reasons[-1]}" if reasons else "it gives no reason"
        raise PlacementError(
            f"the proof needs a GPU, but TensorFlow sees none; {found}. Run nvidia-smi, and install"
            " requirements-gpu.txt on a machine with a driver. To try the proof without:"
            " --simulate-gpus 2 --small."
        )
    return count


if __name__ == "__main__":
    sys.exit(report_errors(main))
