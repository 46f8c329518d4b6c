"""`myxtts train`: settings → training → exit code."""

import argparse
import json
from collections.abc import Sequence

from myxtts.config.load import dump, json_schema
from myxtts.config.parser import add_switch
from myxtts.config.schema import Config
from myxtts.config.settings_parser import read_settings, settings_parser

NAME = "train"
HELP = "Train a voice, a speech recogniser or a vocoder."
EXTRA = "train"


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
            from myxtts.checkpoints.inherited import with_inherited_settings

            config = with_inherited_settings(config)
        print(dump(config), end="")
        return 0
    # Imports NumPy, and TensorFlow later.
    from myxtts.trial.auto import train_placed

    return train_placed(config)
