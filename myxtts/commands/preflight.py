"""`myxtts preflight`: a short trial of what `myxtts train` does with the same settings.

Exit codes: 0 all checks passed, 1 a check failed, 2 a mistake in the settings.
"""

import argparse
from collections.abc import Sequence

from myxtts.base.files import check_writable, write_json
from myxtts.config.parser import add_flag, add_json_flag, bounded
from myxtts.config.schema import Config
from myxtts.config.settings_parser import read_settings, settings_parser

NAME = "preflight"
HELP = "Check with a short trial whether a training run will work."
EXTRA = "train"


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> tuple[Config, argparse.Namespace]:
    description = f"{HELP} Without --data-gpu and --model-gpu: batches on GPU 0, model on GPU 1."
    parser = settings_parser(prog, description)
    add_json_flag(parser)
    steps = "maximum number of training steps (4 to 1000, default 12)"
    add_flag(parser, "--steps", steps, bounded(int, 4, 1000), "N", default=12)
    config, options = read_settings(parser, argv)
    check_writable("--json", options.json_file)
    return config, options


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    config, options = parse(argv, prog)
    # Imports TensorFlow, which takes seconds.
    from myxtts.trial.preflight.validate import validate

    report = validate(config, options.steps)
    print(f"\n{report.summary()}")
    if options.json_file is not None:
        write_json(options.json_file, report.to_json())
    return 0 if report.passed else 1
