"""Measure the gain of taking all batches of a step from one bucket.

    python benchmarks/buckets.py
    python benchmarks/buckets.py --real-time --replicas 2 4 8

The batches come from the plan of the demo corpus. The times of producing and of the step are
proportional to their padded length. In the plan, all replicas of a step have batches of one bucket.
The alternative is an independent bucket for each replica: the plan of one replica, whose batches go
to the replicas in turn. Each GPU makes its own batches. Both are simulated, and emulated with
threads that sleep, as in benchmarks/planner.py.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._emulator import real_time_priority
from benchmarks.planner import MAX_RUNS, emulate_runs
from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.commands.console import report_errors
from myxtts.commands.parser import bounded
from myxtts.config.schema import Config, DataConfig
from myxtts.data.batch_plan import Plan
from myxtts.data.dataset import DEMO_FOLDER, ensure_demo_corpus, load_corpora
from myxtts.data.plan_iterator import Position, planned_steps
from myxtts.placement.routes import Route
from myxtts.tasks.length_rules import length_rule_of
from myxtts.throughput.simulator import DEFAULT_DEPTHS, simulate
from myxtts.throughput.stage_times import StageTimes

COLUMNS = (
    "replicas | buckets | padding, planned | independent | simulated batches/s, planned |"
    " independent | gain in speech/s | emulated batches/s, planned | independent | gain in speech/s"
)


class Workload(NamedTuple):
    """Times of the batches in the order of steps and replicas, and the speech per batch."""

    stages: StageTimes
    speech_s: float
    padding: float


def main() -> int:
    arguments = parse()
    ensure_demo_corpus()
    print(f"| {COLUMNS} |\n{'|---' * (1 + COLUMNS.count(' | '))}|")
    with tempfile.TemporaryDirectory() as folder:
        for replicas in arguments.replicas:
            for buckets in arguments.buckets:
                plans = [
                    plan_of(buckets, sharing, arguments.batch_size, Path(folder))
                    for sharing in (replicas, 1)
                ]
                with real_time_priority() if arguments.real_time else nullcontext():
                    print(
                        f"| {' | '.join(cells(arguments, replicas, buckets, *plans))} |", flush=True
                    )
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    count, milliseconds = bounded(int, 1, 64), bounded(float, 0.0, 1000.0)
    parser.add_argument("--replicas", type=bounded(int, 2, 64), nargs="+", default=[2, 4])
    parser.add_argument("--buckets", type=count, nargs="+", default=[4, 8])
    parser.add_argument("--batch-size", type=count, default=8, help="utterances in a batch")
    parser.add_argument(
        "--produce-ms",
        type=milliseconds,
        default=4.0,
        help="mean time to produce a batch, in the plan of one replica",
    )
    parser.add_argument(
        "--step-ms",
        type=bounded(float, 0.1, 1000.0),
        default=20.0,
        help="mean time of a step, likewise",
    )
    parser.add_argument(
        "--steps", type=bounded(int, 10, 10_000), default=60, help="number of steps"
    )
    parser.add_argument(
        "--real-time", action="store_true", help="run with real-time priority, for a busy machine"
    )
    return parser.parse_args()


def plan_of(buckets: int, replicas: int, batch_size: int, folder: Path) -> Plan:
    """Return a plan of the demo corpus."""
    config = Config(
        data=DataConfig(train_data=str(DEMO_FOLDER), buckets=buckets, batch_size=batch_size)
    )
    corpus, _, _ = load_corpora(config, folder, length_rule_of(config), replicas=replicas)
    return corpus.plan


def cells(
    arguments: argparse.Namespace, replicas: int, buckets: int, planned: Plan, independent: Plan
) -> Iterator[str]:
    """Yield the cells of a row of the table."""
    routes = [Route(str(device), str(device)) for device in range(replicas)]
    usual_s = np.mean(padded_s(independent, independent.steps_per_epoch))
    workloads = [
        workload_of(arguments, plan, arguments.steps * replicas, usual_s)
        for plan in (planned, independent)
    ]
    yield from (str(replicas), str(buckets), *(f"{workload.padding:.1%}" for workload in workloads))
    simulated = [simulate(routes, workload.stages) for workload in workloads]
    emulated = [
        emulate_runs(routes, workload.stages, DEFAULT_DEPTHS, 0.0, MAX_RUNS)
        for workload in workloads
    ]
    for outcomes in (simulated, emulated):
        rates = [outcome.batches_per_s for outcome in outcomes]
        speech = [rate * workload.speech_s for rate, workload in zip(rates, workloads, strict=True)]
        yield from (*(f"{rate:.1f}" for rate in rates), f"{speech[0] / speech[1] - 1.0:+.1%}")


def workload_of(
    arguments: argparse.Namespace, plan: Plan, batches: int, usual_s: float
) -> Workload:
    """Return the first batches of a plan; batches with `usual_s` of padded speech take the times of
    the arguments.
    """
    relative_length = padded_s(plan, batches) / usual_s
    nothing = np.zeros(batches)
    stages = StageTimes(
        nothing,
        relative_length * arguments.produce_ms / 1e3,
        nothing,
        relative_length * arguments.step_ms / 1e3,
    )
    speech_s = (
        plan.samples.sum(dtype=np.int64) / SAMPLE_RATE_HZ / (plan.steps_per_epoch * plan.replicas)
    )
    return Workload(stages, float(speech_s), plan.padding)


def padded_s(plan: Plan, batches: int) -> np.ndarray:
    """Return the padded lengths of a plan's first batches, float [batches], in the order of steps
    and replicas.
    """
    steps = islice(planned_steps(plan, Position()), -(-batches // plan.replicas))
    lengths = [
        plan.bounds[step.bucket] / SAMPLE_RATE_HZ
        for _, _, step in steps
        for _ in range(plan.replicas)
    ]
    return np.array(lengths[:batches])


if __name__ == "__main__":
    sys.exit(report_errors(main))
