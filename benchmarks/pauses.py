"""Measure how long the model device waits for validation, samples and checkpoints: between two
steps, and beside them.

    python benchmarks/pauses.py
    python benchmarks/pauses.py --steps 350 --skip 150 --sizes tiny -- --train-data data/demo
    python benchmarks/pauses.py --gpus

Each run trains on two simulated GPUs with one thread for each operation; both devices share the
cores of the machine. The first --skip steps are left out: validation and samples between two steps
are traced there.

--gpus prints the steps of the training loop on emulated GPUs instead, in virtual time: the same on
every machine.
"""

import argparse
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._timed_runs import DUAL, RUNS, metrics_of, run_script, split_arguments
from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.errors import ConfigError

PERIODS = ("--validate-every", "100", "--sample-every", "500", "--checkpoint-every", "100")
THREADS = ("--intra-op-threads", "1", "--inter-op-threads", "2")
LOG_EVERY = 50
OBSERVERS = {"between two steps": "model", "during training": "data"}


def main() -> int:
    own, train_flags = split_arguments(sys.argv[1:])
    arguments = parse(own)
    if arguments.gpus:
        print("\n".join(gpu_table()))
        return 0
    if arguments.steps < arguments.skip + 2 * LOG_EVERY:
        raise ConfigError(
            f"--steps {arguments.steps} leaves less than two reports after --skip {arguments.skip}."
            f" Give --steps {arguments.skip + 2 * LOG_EVERY} or more."
        )
    columns = (
        "size | validation, samples, checkpoints | steps | step, ms | wait | pause | pauses of the"
        " whole run"
    )
    print(f"| {columns} |")
    print("|---" * 7 + "|")
    for size in arguments.sizes:
        for name, observer in OBSERVERS.items():
            cells = measure(size, observer, arguments.steps, arguments.skip, train_flags)
            print(f"| {size} | {name} | {' | '.join(cells)} |", flush=True)
    return 0


def parse(own: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="Arguments after -- are passed to train_main.py.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=bounded(int, 2), default=1150)
    parser.add_argument(
        "--skip", type=bounded(int, 0), default=550, help="first steps, which are not counted"
    )
    parser.add_argument(
        "--sizes", nargs="+", default=["tiny"], choices=("tiny", "small", "normal", "big")
    )
    parser.add_argument("--gpus", action="store_true", help="print steps on emulated GPUs instead")
    options = parser.parse_args(own)
    if options.steps % LOG_EVERY or options.skip % LOG_EVERY or options.steps <= options.skip:
        parser.error(
            f"--steps and --skip must be multiples of {LOG_EVERY}, the steps of a report; --skip is"
            " the smaller"
        )
    return options


def measure(size: str, observer: str, steps: int, skip: int, train_flags: list[str]) -> list[str]:
    """Train a run and remove it; return the cells of its row."""
    run = RUNS / f"pauses-{size}-{observer}-{int(time.time())}"
    flags = [
        "--config",
        "configs/demo.yaml",
        *DUAL,
        *THREADS,
        *PERIODS,
        "--log-every",
        str(LOG_EVERY),
    ]
    flags += [
        "--run",
        run.name,
        "--model-size",
        size,
        "--max-steps",
        str(steps),
        "--observer",
        observer,
        *train_flags,
    ]
    try:
        run_script("train_main.py", *flags)
        reports = [report for report in metrics_of(run) if report["step"] > skip]
        log = (run / "log.txt").read_text(encoding="utf-8")
    finally:
        shutil.rmtree(run, ignore_errors=True)
    step_s, wait_s, pause_s = (
        sum(report[name] for report in reports) for name in ("step_s", "wait_s", "pause_s")
    )
    of_run = re.search(r"time .*pauses (.*)", log)
    shares = f"{wait_s / step_s:.2%}", f"{pause_s / (step_s + pause_s):.2%}"
    return [
        f"{LOG_EVERY * len(reports)}",
        f"{1e3 * step_s / len(reports):.0f}",
        *shares,
        of_run[1] if of_run else "",
    ]


TRANSFER_MS, STEP_MS, COPY_MS = 5.0, 100.0, 10.0
BATCHES, BATCH_MS, EVERY, STEPS = 20, 40.0, 100, 800
GPU_CASES = (30.0, 60.0, 95.0)  # P


def gpu_table() -> Iterator[str]:
    """Yield a Markdown table of runs on emulated GPUs."""
    from fakes.emulated_gpu import (
        HeldOut,
        Workload,
        train,
    )  # imports TensorFlow, which takes seconds

    yield (
        f"C {STEP_MS:g} ms, T {TRANSFER_MS:g} ms; every {EVERY} steps a snapshot of {COPY_MS:g} ms"
        f" and a validation of {BATCHES} batches of {BATCH_MS:g} ms each"
    )
    yield ""
    yield "| P, ms | validation | step, ms | wait | pause |"
    yield "|---" * 5 + "|"
    places = {
        "none": None,
        "between two steps": "model",
        "on the data device": "data",
        "on a third device": "other",
    }
    for produce_ms in GPU_CASES:
        for name, place in places.items():
            held_out = place and HeldOut(EVERY, BATCHES, BATCH_MS / 1e3, COPY_MS / 1e3, place)
            run = train(Workload.of_ms(produce_ms, STEP_MS, TRANSFER_MS), STEPS, held_out or None)
            yield (
                f"| {produce_ms:g} | {name} | {1e3 * run.step_s:.2f} | {run.wait_share:.2%} |"
                f" {run.pause_share:.2%} |"
            )


if __name__ == "__main__":
    sys.exit(report_errors(main))
