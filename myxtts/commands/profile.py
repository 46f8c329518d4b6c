"""`myxtts profile`: measure the first steps of a run, whose weights and folder stay unchanged."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from myxtts.base.files import check_writable, write_json, write_whole
from myxtts.config import parser as flags
from myxtts.config.schema import Config
from myxtts.config.settings_parser import read_settings, settings_parser

NAME = "profile"
HELP = "Measure where the time of a training run goes, and recommend faster settings."
EXTRA = "train"


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> tuple[Config, argparse.Namespace]:
    parser = settings_parser(prog, HELP)
    group = parser.add_argument_group("profile", "What to measure and what to write.")
    steps = "steps to measure, after a warm-up (default 100)"
    flags.add_flag(group, "--num-steps", steps, flags.bounded(int, 2, 1e6), "N", default=100)
    flags.add_json_flag(group)
    trace = "write a trace of all batches for ui.perfetto.dev"
    flags.add_flag(group, "--trace", trace, Path, "FILE")
    return read_settings(parser, argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    config, options = parse(argv, prog)
    check_writable("--json", options.json_file)
    check_writable("--trace", options.trace)
    # Imports TensorFlow, which takes seconds.
    from myxtts.trial.profile import chrome_trace, profile

    rows, spans = profile(config, options.num_steps)
    print("\n".join(row.line for row in rows if row.text))
    if options.json_file:
        figures: dict[str, Any] = {}
        for row in rows:
            figures |= row.figures
        write_json(options.json_file, figures)
        print(f"{'wrote':<14} {options.json_file}")
    if options.trace:
        write_whole(options.trace, json.dumps(chrome_trace(spans, rows[0].text)).encode())
        print(f"{'wrote':<14} {options.trace}")
    return 0
