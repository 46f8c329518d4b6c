"""`myxtts plan`: the bound of each placement from mean stage times."""

import argparse
from collections.abc import Sequence

from myxtts.base.errors import ConfigError
from myxtts.base.files import check_writable, write_json
from myxtts.config.parser import CommandParser, add_flag, add_json_flag, bounded
from myxtts.config.schema import DataConfig
from myxtts.placement.bound import STAGES, Speeds
from myxtts.trial.candidates import candidate_placements, describe_bound, format_table, rank

NAME = "plan"
HELP = "Compare every placement by the times of the stages."
MAX_GPUS = 16
MAX_MS = 60_000.0


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog, HELP, epilog="Times are means per batch, in milliseconds.")
    # The bounds of a count are those of the settings with the same names.
    ms, count = bounded(float, 0.0, MAX_MS), bounded(int, 1, 1_000_000)
    add_flag(parser, "--gpus", "number of GPUs", bounded(int, 1, MAX_GPUS), required=True)
    add_flag(parser, "--read-ms", "R: one worker reads a batch (default 0)", ms, default=0.0)
    produce = "P: the data device makes a batch"
    add_flag(parser, "--produce-ms", produce, ms, required=True)
    transfer = "T: a batch moves to another GPU (default 0)"
    add_flag(parser, "--transfer-ms", transfer, ms, default=0.0)
    add_flag(parser, "--step-ms", "C: the model trains on a batch", ms, required=True)
    all_reduce = "A: all-reduce of two replicas; k replicas take 2 (k - 1) / k times as long"
    add_flag(parser, "--all-reduce-ms", all_reduce, ms, default=0.0)
    observe = "V: validation and samples in a step, on the data device where it is free"
    add_flag(parser, "--observe-ms", observe, ms, default=0.0)
    speed = "speed of each GPU, by which the times of its stages are divided (default: all 1)"
    add_flag(parser, "--speeds", speed, bounded(float, 0.001, 1000.0), nargs="+")
    fixed = "fraction of C that does not depend on the rows, such as the weights' update"
    add_flag(parser, "--fixed-step", fixed, bounded(float, 0.0, 1.0), default=0.0)
    rows = "rows of a batch, which unlike GPUs share unequally"
    add_flag(parser, "--batch-size", rows, count, default=DataConfig().batch_size)
    workers = DataConfig().num_workers
    readers = f"readers of each data GPU (default {workers})"
    add_flag(parser, "--num-workers", readers, count, default=workers)
    add_json_flag(parser)
    return parser.parse(argv)


# Every placement of the GPUs is made from the times, its bound is computed by arithmetic, and the
# shortest comes first. Nothing is measured, so this needs no GPU and no TensorFlow.
def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    check_writable("--json", options.json_file)
    mean_s = {stage: getattr(options, f"{stage}_ms") / 1e3 for stage in STAGES}
    if not mean_s["produce"] + mean_s["step"]:
        raise ConfigError(
            "--produce-ms and --step-ms are both 0, so nothing can be compared. Give one above 0."
        )
    speeds = speeds_of(options)
    workers, all_reduce_s = options.num_workers, options.all_reduce_ms / 1e3
    found = candidate_placements(speeds, mean_s, options.batch_size, workers, all_reduce_s)
    observe_s = options.observe_ms / 1e3
    ranked = rank(each.bound(mean_s, workers, all_reduce_s, observe_s) for each in found)
    print("\n".join(format_table(ranked)))
    print(describe_bound(ranked, speeds.bound_s(mean_s)))
    if options.json_file:
        placements = [
            {name: getattr(candidate, name) for name in ("name", "flags", "gpus", "replicas")}
            | {"bound_s": batch_s, "formula": formula}
            for candidate, formula, batch_s in ranked
        ]
        figures = {"mean_s": mean_s, "all_reduce_s": all_reduce_s, "observe_s": observe_s}
        write_json(options.json_file, figures | {"placements": placements})
    return 0


def speeds_of(options: argparse.Namespace) -> Speeds:
    speeds = options.speeds or [1.0] * options.gpus
    if len(speeds) != options.gpus:
        raise ConfigError(
            f"--speeds has {len(speeds)} numbers for {options.gpus} GPUs. Give one for each."
        )
    return Speeds.of(speeds, options.fixed_step)
