"""The flags of the settings: flags → Config.

The flags of a run are the settings of the schema: `data.batch_size` is `--batch-size`. This module
only converts their text; the schema decides which values are allowed, for flags and YAML alike.
"""

import argparse
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from myxtts.config.flags import SECTIONS, SETTINGS, Setting, in_section
from myxtts.config.load import config_of_run, load
from myxtts.config.parser import CommandParser, add_flag
from myxtts.config.schema import Config, Needs

_METAVARS = {int: "N", float: "X", str: "TEXT"}
RESUMING = (
    "`--resume --run NAME` without --config and --train-data takes the settings of the run from its"
    " config.yaml."
)
_SETTING_NAMES = re.compile(rf"\b({'|'.join(name for name in SETTINGS if '_' in name)})\b")


def settings_parser(prog: str, description: str, resuming: str = RESUMING) -> CommandParser:
    """Return a parser of --config and of a flag for each setting; the help ends with `resuming`."""
    usage = f"{prog} [--config FILE] [--FLAG VALUE ...]"
    epilog = (
        "Flags replace the values of --config, and these replace the defaults. Every flag may be"
        " spelled with _ for -. The value `null` unsets a flag whose default is not set."
        f" {resuming}"
    )
    parser = CommandParser(prog, description, usage=usage, epilog=epilog)
    add_flag(parser, "--config", "YAML file of settings", Path, "FILE")
    for section, meaning in SECTIONS.items():
        add_setting_flags(parser.add_argument_group(section, meaning), in_section(section))
    return parser


def add_settings(parser: CommandParser, names: Iterable[str]) -> None:
    """Add the flags of some settings, whatever they need in a run."""
    add_setting_flags(parser, (replace(SETTINGS[name], needs=Needs()) for name in names))


def add_setting_flags(group: argparse._ActionsContainer, settings: Iterable[Setting]) -> None:
    for setting in settings:
        options: dict[str, Any] = {"default": argparse.SUPPRESS}
        options["help"] = setting_help(setting).replace("%", "%%")
        if setting.kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["type"] = partial(_converted, setting)
            options["metavar"] = _METAVARS[setting.kind]
        if setting.choices:
            options["metavar"] = "{" + ",".join(setting.choices) + "}"
        if setting.many:
            options |= {"nargs": "*", "action": "extend"}
        group.add_argument(setting.flag, **options)


def setting_help(setting: Setting) -> str:
    """Return the help of a setting's flag, which names other settings by their flags."""
    meaning = _SETTING_NAMES.sub(lambda match: SETTINGS[match[0]].flag, setting.meaning)
    if setting.kind is bool:
        switch = "on" if setting.default else "off"
        return f"{meaning} (default: {switch})"
    default = "not set" if setting.default in (None, ()) else setting.default_text
    return f"{meaning} ({setting.allowed.removesuffix(', or null')}; default: {default})"


def _converted(setting: Setting, text: str) -> Any:
    """Return the value that a text stands for, or else the text, which the schema rejects."""
    if setting.nullable and text == "null":
        return None
    try:
        return setting.kind(text)
    except ValueError:
        return text


def add_columns_flag(parser: CommandParser, corpus: str) -> None:
    meaning = f"columns of a file without a header that {corpus} names, as for `train`"
    columns = SETTINGS["columns"].choices
    add_flag(parser, "--columns", meaning, nargs="+", default=(), choices=columns)


# argparse gives only the settings that were typed, since their default is SUPPRESS. So flags
# replace the values of a file, and defaults never do. A resumed run without --config and
# --train-data takes its own config.yaml, if it has one, as if it were given with --config.
def read_settings(
    parser: CommandParser, argv: Sequence[str], own: Collection[str] = ()
) -> tuple[Config, argparse.Namespace]:
    """Return the settings and the values of a command's own flags, and of --config.

    `own` are settings that the command sets later; its run needs no config.yaml. Raises
    ConfigError.
    """
    options = parser.parse(argv)
    overrides: dict[str, Any] = {}
    for name in SETTINGS.keys() & vars(options).keys():
        value = vars(options).pop(name)
        if isinstance(value, list):
            value = value[0] if value == [SETTINGS[name].word] else tuple(value)
        overrides[name] = value
    path = getattr(options, "config", None)
    # A command that names the corpus has all settings, as at the start of the run.
    if path is None and overrides.get("resume") and "train_data" not in overrides:
        place = {name: overrides.get(name, SETTINGS[name].default) for name in ("run", "runs_dir")}
        path = config_of_run(**place, may_be_new=bool(own or overrides.keys() - {*place, "resume"}))
        # A recorded early stop has ended the previous start, and would end this one at once.
        overrides = {"stop_at_step": None} | overrides | place
    return load(path, overrides, own), options
