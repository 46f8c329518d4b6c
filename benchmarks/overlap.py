"""Measure how much of the producing time the hand-over hides: with stages that sleep, and on
emulated GPUs.

    python benchmarks/overlap.py
    python benchmarks/overlap.py --produce-ms 5 --consume-ms 20 --batches 200
    python benchmarks/overlap.py --gpus

Both stages sleep, as in MLPerf Storage, so that the hand-over is measured and not the cores. One
after the other they take batches x (produce + consume). The ideal is the shorter of the two twice
(a step begins when the batch of the next one is there), plus batches x the longer.

--gpus prints the steps of the training loop on emulated GPUs instead, in virtual time: the same on
every machine.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._emulator import emulate, precise_sleep, real_time_priority
from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.errors import ConfigError
from myxtts.placement.routes import Route
from myxtts.throughput.simulator import QueueDepths
from myxtts.throughput.stage_times import StageTimes, gamma_times

DEPTHS = (1, 2, 3, 8)
VARIATIONS = (0.0, 0.25, 0.5, 1.0)  # standard deviation of a stage's time over its mean

MIN_BATCHES = 3  # needed for the largest variation


def main() -> int:
    arguments = parse()
    if arguments.gpus:
        print("\n".join(gpu_table()))
        return 0
    if arguments.table and arguments.batches < MIN_BATCHES:
        raise ConfigError(
            f"--batches {arguments.batches} are too few for the variations in the table. "
            f"Give {MIN_BATCHES} or more, or --no-table."
        )
    with real_time_priority() if arguments.real_time else nullcontext():
        return measure(arguments)


def measure(arguments: argparse.Namespace) -> int:
    batches, produce_s, consume_s = (
        arguments.batches,
        arguments.produce_ms / 1e3,
        arguments.consume_ms / 1e3,
    )
    produce, consume = np.full(batches, produce_s), np.full(batches, consume_s)
    slowest_s = batches * max(produce_s, consume_s)
    ideal_s = slowest_s + 2 * min(produce_s, consume_s)
    achieved = [overlapped_s(produce, consume, arguments.depth) for _ in range(arguments.repeats)]
    achieved_s = median(achieved)
    print(
        f"{batches} batches, {1e3 * produce_s:g} ms to produce and {1e3 * consume_s:g} ms to"
        " consume each; ",
        end="",
    )
    print(f"depth {arguments.depth}, median of {arguments.repeats}")
    print(f"serial      {serial_s(produce, consume):7.3f} s")
    print(f"ideal       {ideal_s:7.3f} s")
    print(f"achieved    {achieved_s:7.3f} s   ({min(achieved):.3f} to {max(achieved):.3f})")
    print(f"efficiency  {100 * ideal_s / achieved_s:7.1f} %   (ideal / achieved)")
    print(
        f"achieved / slower stage ({slowest_s:.3f} s): {achieved_s / slowest_s:.3f}, limit"
        f" {arguments.limit:g}"
    )
    if arguments.table:
        print_table(arguments)
    return 0 if achieved_s <= arguments.limit * slowest_s else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog="Exit code 1 if the overlapped run takes more than --limit times its slower stage.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--batches", type=bounded(int, 1), default=100)
    parser.add_argument("--produce-ms", type=bounded(float, 0.01, 60_000.0), default=20.0)
    parser.add_argument("--consume-ms", type=bounded(float, 0.01, 60_000.0), default=20.0)
    parser.add_argument("--depth", type=bounded(int, 1), default=3)
    parser.add_argument("--repeats", type=bounded(int, 1), default=5)
    parser.add_argument("--limit", type=bounded(float, 0.0, 1000.0), default=1.05)
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the varying times in the table"
    )
    parser.add_argument(
        "--gpus", action="store_true", help="print steps on emulated GPUs, before and now, instead"
    )
    parser.add_argument(
        "--real-time", action="store_true", help="run with real-time priority, for a busy machine"
    )
    parser.add_argument(
        "--table",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="print the efficiency by depth and variation",
    )
    return parser.parse_args()


def overlapped_s(produce: np.ndarray, consume: np.ndarray, depth: int) -> float:
    """Return the seconds from producing the first batch to consuming the last; the feed starts
    empty.
    """
    nothing = np.zeros(len(produce))
    stages = StageTimes(nothing, produce, nothing, consume)
    return emulate(
        [Route("producer", "consumer")], stages, QueueDepths(feed=depth)
    ).result.duration_s


def serial_s(produce: np.ndarray, consume: np.ndarray) -> float:
    start_s = time.perf_counter()
    for pair_s in zip(produce, consume, strict=True):
        for seconds in pair_s:
            precise_sleep(seconds)
    return time.perf_counter() - start_s


def print_table(arguments: argparse.Namespace) -> None:
    """Print the efficiency against the same ideal if stage times vary, which shows the use of a
    deeper feed.
    """
    random = np.random.default_rng(arguments.seed)
    print("\nefficiency in % if the times vary (gamma distributed, the same for all depths)")
    print("  variation" + "".join(f"  depth {depth}" for depth in DEPTHS))
    for variation in VARIATIONS:
        produce, consume = (
            gamma_times(random, mean_ms / 1e3, variation, arguments.batches)
            for mean_ms in (arguments.produce_ms, arguments.consume_ms)
        )
        ideal_s = max(produce.sum() + consume[-2:].sum(), produce[:2].sum() + consume.sum())
        ratios = [ideal_s / overlapped_s(produce, consume, depth) for depth in DEPTHS]
        print(
            f"  {variation:9.2f}" + "".join(f"  {100 * efficiency:7.1f}" for efficiency in ratios)
        )


STEP_MS, TRANSFER_MS = 100.0, 5.0
GPU_CASES = (
    (1, 30.0),
    (1, 98.0),
    (1, 102.0),
    (1, 150.0),
    (3, 10.0),
    (3, 30.0),
    (3, 33.0),
    (3, 50.0),
)  # replicas, P


def gpu_table() -> Iterator[str]:
    """Yield a Markdown table of runs on emulated GPUs, with the former hand-over and the present
    one.
    """
    from fakes.emulated_gpu import (
        Workload,
        train,
        train_as_formerly,
    )  # imports TensorFlow, which takes seconds

    yield (
        f"C {STEP_MS:g} ms, T {TRANSFER_MS:g} ms; launching takes 20 % of a step and of a batch, a"
        " call 0.5 ms"
    )
    yield ""
    columns = (
        "replicas | P, ms | by arithmetic, ms | before: step, ms | wait | idle | now: step, ms |"
        " wait | idle | warning"
    )
    yield f"| {columns} |"
    yield "|---" * 10 + "|"
    for replicas, produce_ms in GPU_CASES:
        workload = Workload.of_ms(produce_ms, STEP_MS, TRANSFER_MS, replicas)
        runs = train_as_formerly(workload), train(workload)
        figures = [
            text
            for run in runs
            for text in (
                f"{1e3 * run.step_s:.1f}",
                f"{run.wait_share:.1%}",
                f"{run.idle_share:.1%}",
            )
        ]
        warning = "long waits" if runs[1].advice else "none"
        cells = f"{replicas}", f"{produce_ms:g}", f"{1e3 * workload.ideal_s:.1f}", *figures, warning
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(report_errors(main))
