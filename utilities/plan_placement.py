"""Throughput of every placement that some GPUs allow, predicted from the times of the stages.

python utilities/plan_placement.py --gpus 2 --produce-ms 20 --transfer-ms 2 --step-ms 20 --all-reduce-ms 4
python utilities/plan_placement.py --gpus 4 --profile profile.json --json placements.json

Times are means for a batch. All GPUs are taken as equally fast.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.cli import bounded, report_errors
from myxtts.errors import ConfigError
from myxtts.files import check_writable, write_whole
from myxtts.planner.planner import MemoryBudget, Prediction, candidate_placements, format_table, predict_all
from myxtts.planner.simulator import QueueDepths
from myxtts.planner.stage_times import (
    MAX_MS,
    MAX_VARIATION,
    STAGES,
    StageStatistics,
    read_profile,
    sample_stage_times,
)

MOST_GPUS = 16
BATCHES = 3200  # 200 rounds on 16 GPUs: filling the queues is at most a few of them


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Predict the throughput of every placement that some GPUs allow.")
    milliseconds, mib = bounded(float, 0.0, MAX_MS), bounded(float, 0.0, 1e7)
    parser.add_argument("--gpus", type=bounded(int, 1, MOST_GPUS), required=True, help="GPUs that there are")
    parser.add_argument("--profile", metavar="FILE", type=Path, help="take times from the profiler's --json")
    parser.add_argument("--read-ms", type=milliseconds, help="one reader reads a batch (default 0)")
    parser.add_argument("--produce-ms", type=milliseconds, help="P: a batch is made")
    parser.add_argument("--transfer-ms", type=milliseconds, help="T: it goes to another GPU (default 0)")
    parser.add_argument("--step-ms", type=milliseconds, help="C: the model trains on it")
    parser.add_argument(
        "--variation", type=bounded(float, 0.0, MAX_VARIATION), help="standard deviation over mean, of every stage"
    )
    parser.add_argument(
        "--all-reduce-ms", type=milliseconds, default=0.0, help="A: of two replicas; k take 2 (k - 1) / k of it"
    )
    parser.add_argument("--memory-mib", type=mib, nargs="+", help="of each GPU, or one number for all")
    parser.add_argument("--produce-memory-mib", type=mib, default=0.0, help="needed to make batches")
    parser.add_argument("--replica-memory-mib", type=mib, default=0.0, help="needed to train a replica")
    usual = QueueDepths()
    count = bounded(int, 1, 1024)
    parser.add_argument("--prefetch-buffer-size", type=count, default=usual.feed, help="as of train_main.py")
    parser.add_argument("--buffer-size", type=count, default=usual.host, help="as of train_main.py")
    parser.add_argument(
        "--num-workers", type=count, default=usual.workers, help="readers of each data GPU; with --profile, as there"
    )
    parser.add_argument("--json", dest="json_file", metavar="FILE", type=Path, help="file for the figures")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = parse(arguments)
    check_writable("--json", asked.json_file)
    costs = costs_of(asked)
    depths = QueueDepths(asked.prefetch_buffer_size, asked.prefetch_buffer_size, asked.buffer_size, asked.num_workers)
    found = candidate_placements(asked.gpus, memory_of(asked))
    ranked = predict_all(found, sample_stage_times(costs, BATCHES), depths, asked.all_reduce_ms / 1e3)
    print("\n".join(format_table(ranked, found)))
    if asked.json_file:
        figures = {
            "stages": {name: cost._asdict() for name, cost in costs.items()},
            "all_reduce_s": asked.all_reduce_ms / 1e3,
            "depths": asdict(depths),
            "placements": [analysis_figures(one) for one in ranked],
            "left_out": [
                {"name": candidate.name, "flags": candidate.flags, "reason": candidate.memory_shortage}
                for candidate in found
                if candidate.memory_shortage
            ],
        }
        write_whole(asked.json_file, (json.dumps(figures, indent=1) + "\n").encode())
    return 0


def costs_of(asked: argparse.Namespace) -> dict[str, StageStatistics]:
    """The costs of the profile, with the flags' in their place where they are given."""
    costs = read_profile(asked.profile) if asked.profile else {}
    if "read" in costs:  # the pace of all workers: one takes as many times longer, and arrivals vary more than reading
        costs["read"] = StageStatistics(costs["read"].mean_s * asked.num_workers)
    for name in STAGES:
        given_ms = getattr(asked, f"{name}_ms")
        if given_ms is not None:
            costs[name] = costs.get(name, StageStatistics(0.0))._replace(mean_s=given_ms / 1e3)
    missing = [f"--{name}-ms" for name in ("produce", "step") if name not in costs]
    if missing:
        raise ConfigError(f"No time was given to {' and '.join(missing)}. Give milliseconds, or a --profile.")
    if not costs["produce"].mean_s + costs["step"].mean_s:
        raise ConfigError("Producing and the step were both given 0 ms: there is nothing to place.")
    if asked.variation is None:
        return costs
    return {name: cost._replace(variation=asked.variation) for name, cost in costs.items()}


def memory_of(asked: argparse.Namespace) -> MemoryBudget | None:
    if asked.memory_mib is None:
        if asked.produce_memory_mib or asked.replica_memory_mib:
            raise ConfigError("What is needed was given without what there is. Give --memory-mib, too.")
        return None
    limits_mib = tuple(asked.memory_mib) * (asked.gpus if len(asked.memory_mib) == 1 else 1)
    if len(limits_mib) != asked.gpus:
        raise ConfigError(
            f"--memory-mib has {len(limits_mib)} numbers for {asked.gpus} GPUs. Give one for each, or one for all."
        )
    return MemoryBudget(asked.produce_memory_mib, asked.replica_memory_mib, limits_mib)


def analysis_figures(one: Prediction) -> dict[str, Any]:
    return {
        "name": one.candidate.name,
        "flags": one.candidate.flags,
        "gpus": one.candidate.gpus,
        "replicas": one.candidate.replicas,
        "batches_per_s": one.batches_per_s,
        "bound_s": one.bound_s,
        "efficiency": one.efficiency,
        "utilisation": one.result.utilisation,
        "formula": one.formula,
    }


if __name__ == "__main__":
    sys.exit(report_errors(main))
