"""`myxtts train`: settings → training → exit code."""

import argparse
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from myxtts.commands.parser import add_switch, read_settings, settings_parser
from myxtts.config.load import dump, json_schema
from myxtts.config.schema import Config

if TYPE_CHECKING:
    from myxtts.training.hooks import Hook

NAME = "train"
HELP = "Train a voice, a speech recogniser or a vocoder."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> tuple[Config, argparse.Namespace]:
    description = f"{HELP} Batches are made on one device while the model trains on another."
    parser = settings_parser(prog, description)
    add_switch(parser, "--print-config", "print the resolved settings as YAML and exit")
    schema = "print the JSON schema of the file of --config, for editors, and exit"
    add_switch(parser, "--print-json-schema", schema)
    return read_settings(parser, argv)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    config, options = parse(argv, prog)
    if options.print_json_schema:
        print(json.dumps(json_schema(), indent=2))
        return 0
    if options.print_config:
        if (config.training.init_from or config.teacher.teacher) and not config.run.resume:
            from myxtts.training.runs import with_inherited_settings  # imports NumPy

            config = with_inherited_settings(config)
        print(dump(config), end="")
        return 0
    return run(config)


def run(config: Config, more: Iterable["Hook"] = ()) -> int:
    """Train, with `more` hooks, in the placement that is the fastest if the settings leave it open.

    Returns the exit code.
    """
    # Imported here, because TensorFlow takes seconds.
    from myxtts.train import train

    if config.placement.placement == "auto":
        from myxtts.throughput.auto import choose_placement
        from myxtts.throughput.measure import measure_stage_times

        config = choose_placement(config, measure_stage_times)
    return train(config, more=more)
