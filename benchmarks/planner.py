"""Compare the planner's predictions with emulated runs of the same placements, whose stages sleep.

    python benchmarks/planner.py
    python benchmarks/planner.py --real-time
    python benchmarks/planner.py --devices 1024

A case is a grid point of P/C, variation, depth, consumers and reading. All placements that
`consumers` + 1 GPUs allow are predicted and run on the same sequence of batches at least twice.
Runs in which a sleep returned late are repeated, since they measure the machine and not the queues;
so are runs that disagree. --devices runs nothing: the simulation alone shows where each part of a
large installation saturates.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._emulator import emulate, real_time_priority
from myxtts.clock import Span
from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.placement.routes import Route
from myxtts.throughput.model import ring_all_reduce_s
from myxtts.throughput.placements import (
    TIE_TOLERANCE,
    Prediction,
    candidate_placements,
    predict_all,
)
from myxtts.throughput.simulator import QueueDepths, simulate
from myxtts.throughput.stage_times import STAGES, StageTimes

TRANSFER_S = 0.5e-3
BATCHES = 60  # one sequence for all placements; divisible by 1 to 5 replicas
MIN_RUNS = 2  # undisturbed runs per placement; they usually differ by 0.1 %
MAX_RUNS = 9
# median over minimum of the undisturbed runs: the machine may also stop between two sleeps
MAX_SPREAD = 1.02
# a later sleep was disturbed by the machine: by 85 to 99 ms in one run of ten on a busy machine
LATE_S = 2e-3


class Case(NamedTuple):
    produce_ms: float
    step_ms: float
    variation: float
    depth: int
    consumers: int
    all_reduce_ms: float
    read_ms: float = 0.0

    @property
    def times(self) -> StageTimes:
        times_s = self.read_ms / 1e3, self.produce_ms / 1e3, TRANSFER_S, self.step_ms / 1e3
        return StageTimes.constant(BATCHES, *times_s, self.variation)

    @property
    def depths(self) -> QueueDepths:
        return QueueDepths(feed=self.depth)


CASES = (
    Case(1, 10, 0.0, 3, 1, 2),
    Case(2.5, 10, 0.5, 3, 1, 6),
    Case(5, 10, 0.0, 1, 1, 8),
    Case(5, 10, 1.0, 8, 1, 8),
    Case(10, 10, 0.0, 3, 1, 4),
    Case(10, 10, 0.5, 2, 1, 4),
    Case(10, 10, 1.0, 1, 1, 2),
    Case(10, 10, 1.0, 8, 1, 2),
    Case(16, 8, 0.25, 3, 1, 1),
    Case(18, 6, 0.5, 8, 1, 16),
    Case(2.5, 10, 0.0, 3, 2, 8),
    Case(5, 10, 0.5, 1, 2, 2),
    Case(1, 10, 0.0, 3, 3, 4),
    Case(2.5, 10, 0.5, 8, 3, 8),
    Case(1, 10, 0.25, 3, 4, 8),
    Case(2, 10, 1.0, 8, 4, 4),
    Case(1, 10, 0.25, 3, 1, 4, 36),
    Case(2.5, 10, 0.5, 3, 2, 2, 20),
)


class Runs(NamedTuple):
    """Runs of a placement.

    Attributes:
        batches: of a run.
        durations_s: of the undisturbed runs, or of all runs if there is none.
        disturbed, total: number of disturbed runs, and of all runs.
    """

    batches: int
    durations_s: list[float]
    disturbed: int
    total: int

    @property
    def batches_per_s(self) -> float:
        return self.batches / median(self.durations_s)


class Comparison(NamedTuple):
    """A placement's prediction and its runs."""

    prediction: Prediction
    runs: Runs

    @property
    def batches_per_s(self) -> float:
        return self.runs.batches_per_s

    @property
    def error(self) -> float:
        return self.prediction.batches_per_s / self.batches_per_s - 1.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0],
        epilog=(
            "Exit code 1 if a prediction is off by more than --limit, or the chosen placement is"
            " slower than the best one by more than --tolerance."
        ),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    fraction = bounded(float, 0.0, 1.0)
    parser.add_argument(
        "--limit", type=fraction, default=0.05, help="largest error of the throughput"
    )
    parser.add_argument(
        "--tolerance",
        type=fraction,
        default=TIE_TOLERANCE,
        help="allowed loss of the chosen placement against the best",
    )
    parser.add_argument(
        "--max-runs",
        type=bounded(int, MIN_RUNS, 99),
        default=MAX_RUNS,
        help="maximum number of runs per placement",
    )
    parser.add_argument(
        "--real-time", action="store_true", help="run with real-time priority, for a busy machine"
    )
    parser.add_argument(
        "--devices", type=bounded(int, 1, 1024), help="simulate up to this many devices instead"
    )
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.devices:
        print("\n".join(scaling_table(options.devices)))
        return 0
    with real_time_priority() if options.real_time else nullcontext():
        return run_grid(options)


def run_grid(options: argparse.Namespace) -> int:
    columns = (
        "P, ms | C, ms | P/C | variation | depth | consumers | A, ms | R, ms | chosen | predicted,"
        " batches/s"
    )
    print(f"| {columns} | measured | error | placements | worst error | against the best |")
    print("|---" * 15 + "|")
    misses = runs = disturbed = 0
    for case in CASES:
        comparisons = [
            compare(prediction, case, options.max_runs) for prediction in predict_case(case)
        ]
        chosen, best = (
            comparisons[0],
            max(comparisons, key=lambda comparison: comparison.batches_per_s),
        )
        worst = max((comparison.error for comparison in comparisons), key=abs)
        behind = chosen.batches_per_s / best.batches_per_s - 1.0
        misses += abs(worst) > options.limit or -behind > options.tolerance
        runs += sum(comparison.runs.total for comparison in comparisons)
        disturbed += sum(comparison.runs.disturbed for comparison in comparisons)
        cells = (
            *(
                f"{number:.3g}"
                for number in (case.produce_ms, case.step_ms, case.produce_ms / case.step_ms)
            ),
            *(f"{number:g}" for number in case[2:]),
            placement_name(chosen.prediction),
            f"{chosen.prediction.batches_per_s:.1f}",
            f"{chosen.batches_per_s:.1f}",
            f"{chosen.error:+.1%}",
            str(len(comparisons)),
            f"{worst:+.1%}",
            "best" if best is chosen else f"{behind:.1%}, {placement_name(best.prediction)}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    print(
        f"\n{len(CASES)} cases, {runs} runs; in {disturbed} a sleep returned more than"
        f" {1e3 * LATE_S:g} ms late."
    )
    print(
        f"Cases with an error above {options.limit:.0%} or a choice more than"
        f" {options.tolerance:.0%} behind: {misses}."
    )
    return 1 if misses else 0


def predict_case(case: Case) -> list[Prediction]:
    return predict_all(
        candidate_placements(case.consumers + 1), case.times, case.depths, case.all_reduce_ms / 1e3
    )


def compare(prediction: Prediction, case: Case, max_runs: int) -> Comparison:
    routes = prediction.candidate.routes
    reduce_s = ring_all_reduce_s(case.all_reduce_ms / 1e3, len(routes))
    return Comparison(prediction, emulate_runs(routes, case.times, case.depths, reduce_s, max_runs))


def emulate_runs(
    routes: Sequence[Route],
    times: StageTimes,
    depths: QueueDepths,
    all_reduce_s: float,
    max_runs: int,
) -> Runs:
    """Run until MIN_RUNS undisturbed runs agree within MAX_SPREAD, at most `max_runs` times."""
    all_s: list[float] = []
    undisturbed_s: list[float] = []
    while len(all_s) < max_runs:
        result, spans = emulate(routes, times, depths, all_reduce_s)
        all_s.append(result.duration_s)
        if max_delay_s(spans, times) < LATE_S:
            undisturbed_s.append(result.duration_s)
        if len(undisturbed_s) >= MIN_RUNS and median(undisturbed_s) <= MAX_SPREAD * min(
            undisturbed_s
        ):
            break
    return Runs(result.batches, undisturbed_s or all_s, len(all_s) - len(undisturbed_s), len(all_s))


def max_delay_s(spans: list[Span], times: StageTimes) -> float:
    """Return the largest delay of a sleep."""
    return max(
        span.end_s - span.start_s - times[span.kind][span.number]
        for span in spans
        if span.kind in STAGES
    )


def placement_name(prediction: Prediction) -> str:
    candidate = prediction.candidate
    return (
        f"{candidate.name}, {candidate.replicas} replicas"
        if candidate.name == "replicated"
        else candidate.name
    )


class Installation(NamedTuple):
    """A simulated installation. Times in seconds."""

    read_s: float = 0.030  # of a batch by one reader
    produce_s: float = 0.002
    transfer_s: float = 0.001
    step_s: float = 0.020
    all_reduce_s: float = 0.002  # of two replicas
    variation: float = 0.25
    link_s: float = 0.28e-3  # 3.5 MB of PCM (16 utterances of 5 s) over 100 Gbit/s

    def batches_per_s(
        self, routes: Sequence[Route], read_s: float = 0.0, link_s: float = 0.0
    ) -> float:
        times_s = read_s, self.produce_s, self.transfer_s, self.step_s
        times = StageTimes.constant(STEPS * len(routes), *times_s, variation=self.variation)
        reduce_s = ring_all_reduce_s(self.all_reduce_s, len(routes))
        return simulate(routes, times, QueueDepths(workers=1), reduce_s, link_s).batches_per_s


STEPS = 50
DEVICES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def scaling_table(max_devices: int) -> Iterator[str]:
    """Yield a Markdown table: batches/s by number of devices, for different placements and ways to
    read.
    """
    varying = Installation()
    steady = varying._replace(variation=0.0)
    producer_s = max(varying.produce_s, varying.transfer_s)
    group = 1 + round((varying.step_s + varying.all_reduce_s) / producer_s)
    single_per_s = varying.batches_per_s(replicated_routes(1))
    # title: rate of n devices, and the limit of the shared resource
    layouts: dict[str, tuple[Callable[[int], float], float | None]] = {
        "replicated, constant times": (lambda n: steady.batches_per_s(replicated_routes(n)), None),
        "replicated": (lambda n: varying.batches_per_s(replicated_routes(n)), None),
        f"a producer for {group - 1}": (
            lambda n: varying.batches_per_s(grouped_routes(n, group)),
            None,
        ),
        "one producer": (lambda n: varying.batches_per_s(grouped_routes(n, n)), 1 / producer_s),
        "a reader for each": (
            lambda n: varying.batches_per_s(replicated_routes(n), read_s=varying.read_s),
            None,
        ),
        "link of 100 Gbit/s": (
            lambda n: varying.batches_per_s(replicated_routes(n), link_s=varying.link_s),
            1 / varying.link_s,
        ),
    }
    yield "| devices | " + " | ".join(layouts) + " |"
    yield "|---" * (1 + len(layouts)) + "|"
    for devices in (count for count in DEVICES if count <= max_devices):
        rates = [batches_per_s(devices) for batches_per_s, _ in layouts.values()]
        cells = [f"{rate:,.0f} ({rate / (devices * single_per_s):.0%})" for rate in rates]
        yield f"| {devices:,} | " + " | ".join(cells) + " |"
    limits = ["" if limit is None else f"{limit:,.0f}" for _, limit in layouts.values()]
    yield "| limit | " + " | ".join(limits) + " |"


def replicated_routes(devices: int) -> list[Route]:
    """Return routes of replicas that make their own batches."""
    return [Route(str(device), str(device)) for device in range(devices)]


def grouped_routes(devices: int, group: int) -> list[Route]:
    """Return routes where the first of each group makes the batches of the others; a group of one
    makes its own.
    """
    routes = [
        Route(str(device - device % group), str(device))
        for device in range(devices)
        if device % group
    ]
    last_alone = devices % group == 1 or group == 1
    return [*routes, Route(str(devices - 1), str(devices - 1))] if last_alone else routes


if __name__ == "__main__":
    sys.exit(report_errors(main))
