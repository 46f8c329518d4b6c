"""`myxtts plan`: predict throughput from mean stage times."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from myxtts.base.errors import ConfigError
from myxtts.base.files import check_writable, write_json
from myxtts.config.parser import CommandParser, add_flag, add_json_flag, bounded
from myxtts.config.schema import DataConfig
from myxtts.placement.bound import DEFAULT_DEPTHS, STAGES, QueueDepths
from myxtts.trial import candidates as planner
from myxtts.trial.candidates import Profile, StageStatistics

NAME = "plan"
HELP = "Predict the throughput of every placement from the times of the stages."
MAX_GPUS = 16
# 200 steps on 16 GPUs; filling the queues takes a few of them.
BATCHES = 3200


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog, HELP, epilog="Times are means per batch, in milliseconds.")
    ms = bounded(float, 0.0, 1e3 * planner.MAX_STAGE_S)
    count = bounded(int, 1, 1024)
    add_flag(parser, "--gpus", "number of GPUs", bounded(int, 1, MAX_GPUS), required=True)
    profile = "read the times from a file that `profile --json` wrote"
    add_flag(parser, "--profile", profile, Path, "FILE")
    add_flag(parser, "--read-ms", "one worker reads a batch (default 0)", ms)
    add_flag(parser, "--produce-ms", "P: the data device makes a batch", ms)
    add_flag(parser, "--transfer-ms", "T: a batch moves to another GPU (default 0)", ms)
    add_flag(parser, "--step-ms", "C: the model trains on a batch", ms)
    speed = "speed of each GPU, by which the times of its stages are divided (default: all 1)"
    add_flag(parser, "--speeds", speed, bounded(float, 0.001, 1000.0), nargs="+")
    fixed = "fraction of C that does not depend on the rows, such as the weights' update"
    add_flag(parser, "--fixed-step", fixed, bounded(float, 0.0, 1.0), default=0.0)
    rows = "rows of a batch, which unlike GPUs share unequally"
    add_flag(parser, "--batch-size", rows, count, default=DataConfig().batch_size)
    variation = "standard deviation of the time of every stage, divided by its mean"
    add_flag(parser, "--variation", variation, bounded(float, 0.0, planner.MAX_VARIATION))
    all_reduce = "A: all-reduce of two replicas; k replicas take 2 (k - 1) / k times as long"
    add_flag(parser, "--all-reduce-ms", all_reduce, ms, default=0.0)
    observe = "V: validation and samples in a step, on the data device where it is free"
    add_flag(parser, "--observe-ms", observe, ms, default=0.0)
    feed, host, workers = DEFAULT_DEPTHS
    add_flag(parser, "--prefetch-buffer-size", "the setting of `train`", count, default=feed)
    add_flag(parser, "--buffer-size", "the setting of `train`", count, default=host)
    readers = f"readers of each data GPU (default: the --profile's, or {workers})"
    add_flag(parser, "--num-workers", readers, count)
    mib = bounded(float, 0.0, 1e7)
    each = "memory of each GPU, or one number for all: what does not fit is left out"
    add_flag(parser, "--memory-mib", each, mib, nargs="+")
    add_flag(parser, "--produce-memory-mib", "memory to make batches", mib, default=0.0)
    replica = "memory to train a replica, besides that for its rows"
    add_flag(parser, "--replica-memory-mib", replica, mib, default=0.0)
    row = "memory for each row of a replica's batch: a GPU takes the rows that fit"
    add_flag(parser, "--row-memory-mib", row, mib, default=0.0)
    add_json_flag(parser)
    return parser.parse(argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    check_writable("--json", options.json_file)
    profile = planner.read_profile(options.profile) if options.profile else Profile()
    costs = costs_of(options, profile)
    depths = QueueDepths(
        options.prefetch_buffer_size,
        options.buffer_size,
        options.num_workers or profile.num_workers or DEFAULT_DEPTHS.num_workers,
    )
    all_reduce_s, observe_s = options.all_reduce_ms / 1e3, options.observe_ms / 1e3
    times = planner.sample_stage_times(costs, BATCHES)
    memory = memory_of(options)
    speeds = speeds_of(options)
    costs_of_steps = times, options.batch_size, depths, all_reduce_s
    candidates = planner.candidate_placements(speeds, *costs_of_steps, memory)
    shortages = {candidate: memory.shortage(candidate)[1] for candidate in candidates}
    left_out = {candidate: reason for candidate, reason in shortages.items() if reason}
    fitting = [candidate for candidate in candidates if candidate not in left_out]
    if not fitting:
        raise ConfigError(
            f"no placement fits the memory: {next(iter(left_out.values()))}. Lower --batch-size of"
            " the run, or give more GPUs."
        )
    ranked = planner.predict_all(fitting, times, depths, all_reduce_s, observe_s)
    print("\n".join(planner.format_table(ranked)))
    print(planner.describe_best(ranked, speeds.bound_s(times.mean_s())))
    for reason in dict.fromkeys(left_out.values()):
        names = dict.fromkeys(c.name for c, given in left_out.items() if given == reason)
        print(f"left out: {'; '.join(names)}: {reason}")
    if options.json_file:
        figures = {
            "stages": {name: asdict(cost) for name, cost in costs.items()},
            "all_reduce_s": all_reduce_s,
            "observe_s": observe_s,
            "depths": depths._asdict(),
            "placements": [figures_of(prediction) for prediction in ranked],
            "left_out": [{"name": c.name, "reason": reason} for c, reason in left_out.items()],
        }
        write_json(options.json_file, figures)
    return 0


def speeds_of(options: argparse.Namespace) -> planner.Speeds:
    speeds = options.speeds or [1.0] * options.gpus
    if len(speeds) != options.gpus:
        raise ConfigError(
            f"--speeds has {len(speeds)} numbers for {options.gpus} GPUs. Give one for each."
        )
    return planner.Speeds.of(speeds, options.fixed_step)


def memory_of(options: argparse.Namespace) -> planner.Memory:
    """Return the memory that --memory-mib and its companions give; without limits if none does."""
    needs = options.produce_memory_mib, options.replica_memory_mib, options.row_memory_mib
    limits = options.memory_mib or [math.inf]
    if options.memory_mib is None and any(needs):
        raise ConfigError("--memory-mib is missing. Add the memory of each GPU.")
    if len(limits) not in (1, options.gpus):
        raise ConfigError(
            f"--memory-mib has {len(limits)} numbers for {options.gpus} GPUs. Give one for each,"
            " or one for all."
        )
    return planner.Memory(tuple(limits * (options.gpus // len(limits))), *needs)


def costs_of(options: argparse.Namespace, profile: Profile) -> dict[str, StageStatistics]:
    """Return the cost of each stage, from its flag or the profile; raises ConfigError."""
    costs = {stage: profile.stages[stage] for stage in STAGES if stage in profile.stages}
    if profile.single_device and options.gpus > 1 and options.transfer_ms is None:
        raise ConfigError(
            f"--profile {options.profile} is of one device, so the time to transfer a batch to"
            " another is unknown. Give --transfer-ms, or profile with --data-gpu and --model-gpu."
        )
    # Without the variation: arrivals vary more than reading does.
    read = costs.pop("read", None)
    if read is not None and options.read_ms is None:
        workers = profile.num_workers or options.num_workers
        if workers is None:
            raise ConfigError(f"--profile {options.profile} needs --num-workers as well.")
        costs["read"] = StageStatistics(workers * read.mean_s)
    for name in STAGES:
        time_ms = getattr(options, f"{name}_ms")
        if time_ms is not None:
            costs[name] = replace(costs.get(name, StageStatistics(0.0)), mean_s=time_ms / 1e3)
    if not {"produce", "step"} <= set(costs):
        raise ConfigError("no times were given. Give --produce-ms and --step-ms, or a --profile.")
    if not costs["produce"].mean_s + costs["step"].mean_s:
        raise ConfigError(
            "--produce-ms and --step-ms are both 0, so nothing can be compared. Give one above 0."
        )
    if options.variation is None:
        return costs
    return {name: replace(cost, variation=options.variation) for name, cost in costs.items()}


def figures_of(prediction: planner.Prediction) -> dict[str, Any]:
    candidate = prediction.candidate
    figures = {name: getattr(candidate, name) for name in ("name", "flags", "gpus", "replicas")}
    for name in ("batches_per_s", "bound_s", "efficiency", "formula"):
        figures[name] = getattr(prediction, name)
    return figures | {"utilisation": prediction.result.utilisation}
