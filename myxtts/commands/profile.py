"""`myxtts profile`: measure the first steps of a run, whose weights and folder stay unchanged."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from myxtts.commands.parser import add_json_flag, bounded, read_settings, settings_parser
from myxtts.config.schema import Config
from myxtts.files import check_writable, write_whole

NAME = "profile"
HELP = "Measure where the time of a training run goes, and recommend faster settings."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> tuple[Config, argparse.Namespace]:
    parser = settings_parser(prog, HELP)
    group = parser.add_argument_group("profile", "What to measure and what to write.")
    steps_help = "steps to measure, after a warm-up (default 100)"
    steps = bounded(int, 2, 1e6)
    group.add_argument("--num-steps", metavar="N", type=steps, default=100, help=steps_help)
    add_json_flag(group)
    trace_help = "write a trace of all batches for ui.perfetto.dev"
    group.add_argument("--trace", metavar="FILE", type=Path, help=trace_help)
    return read_settings(parser, argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    config, options = parse(argv, prog)
    check_writable("--json", options.json_file)
    check_writable("--trace", options.trace)
    # These import TensorFlow, which takes seconds.
    from myxtts.throughput.analysis import analyze
    from myxtts.throughput.profiler import profile
    from myxtts.throughput.report import analysis_to_json, chrome_trace, report_lines

    measurement, device_metrics, placement = profile(config, options.num_steps)
    analysis = analyze(measurement, config.data)
    name = f"{placement.name}, {options.num_steps} steps"
    lines = [f"{'profile':<14} {name}", *report_lines(analysis), *device_metrics.lines()]
    print("\n".join(lines))
    if options.json_file:
        figures = {
            "profile": name,
            "num_workers": config.data.num_workers,
            "single_device": measurement.single_device,
        }
        figures |= analysis_to_json(analysis) | device_metrics.to_json()
        write_whole(options.json_file, (json.dumps(figures, indent=1) + "\n").encode())
        print(f"{'wrote':<14} {options.json_file}")
    if options.trace:
        trace = chrome_trace(measurement.traced[-1].spans, name)
        write_whole(options.trace, json.dumps(trace).encode())
        print(f"{'wrote':<14} {options.trace}")
    return 0
