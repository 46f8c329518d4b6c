"""The parsers of commands: flags → settings and options, with a suggestion for a flag that does not exist.

The flags of a run are the settings of the schema: `data.batch_size` is `--batch-size`. This module only converts their
text; the schema decides which values are allowed, for flags and YAML alike.
"""

import argparse
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from myxtts.config.load import load, shown
from myxtts.config.renamed import RENAMED
from myxtts.config.schema import Config
from myxtts.config.settings import SECTIONS, SETTINGS, Setting, in_section, nearest
from myxtts.errors import ConfigError

_METAVARS = {int: "N", float: "X", str: "TEXT"}
_NOUNS = {int: "whole number", float: "number"}
_SETTING_NAMES = re.compile(rf"\b({'|'.join(name for name in SETTINGS if '_' in name)})\b")


class CommandParser(argparse.ArgumentParser):
    """A parser that raises ConfigError instead of exiting.

    Every flag may be spelled with _ for -, and none may be abbreviated.
    """

    def __init__(self, *args: Any, renamed: Mapping[str, str] | None = None, **options: Any):
        super().__init__(*args, **{"allow_abbrev": False, **options})
        self._renamed = {**RENAMED, **(renamed or {})}

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        if ", but must be " in message:  # from `bounded`
            raise ConfigError(message.replace(": is ", " is ", 1))
        raise ConfigError(f"{message}. --help lists the flags.")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments without the program's name.

        Raises:
            ConfigError: a flag is unknown, a value is not allowed, or a required flag is missing.
        """
        end = argv.index("--") if "--" in argv else len(argv)  # the rest is for another program
        options, unknown = self.parse_known_args([*map(_hyphenated, argv[:end]), *argv[end:]])
        if unknown:
            raise ConfigError(self._unknown(unknown[0]))
        return options

    def flags(self) -> list[str]:
        """The flags of this parser and of its subcommands."""
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                flags += [flag for parser in action.choices.values() for flag in parser.flags()]
        return flags

    def _unknown(self, argument: str) -> str:
        flag, flags = argument.partition("=")[0], self.flags()
        new = self._new_name(flag)
        if new in flags:
            return f"{shown(flag)} is not a flag: it was renamed to {new}."
        near = nearest(flag, flags)
        if near:
            return f"{shown(argument)} is not a flag. Did you mean {near}?"
        return f"{shown(argument)} is neither a flag nor the value of one. --help lists the flags."

    def _new_name(self, flag: str) -> str | None:
        negation = "no-" if flag.startswith("--no-") else ""
        new = self._renamed.get(flag.removeprefix(f"--{negation}").replace("-", "_"))
        return new and f"--{negation}{new.replace('_', '-')}"


def bounded(kind: type[int] | type[float], low: float, high: float = math.inf) -> Callable[[str], Any]:
    """Return an argparse type: a number of a kind, from `low` to `high`."""
    bounds = f"of at least {low:.15g}" if high == math.inf else f"from {low:.15g} to {high:.15g}"

    def number(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"is {shown(text)}, but must be a {_NOUNS[kind]} {bounds}.")
        return value

    return number


def settings_parser(prog: str, description: str) -> CommandParser:
    """Return a parser of --config and of a flag for each setting; a command adds its own flags by `add_argument`."""
    parser = CommandParser(
        prog=prog,
        usage=f"{prog} [--config FILE] [--FLAG VALUE ...]",
        description=description,
        epilog="Flags replace the values of --config, and these replace the defaults. Every flag may be spelled with "
        "_ for -. The value `null` unsets a flag whose default is not set.",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="YAML file of settings, by section")
    for section, meaning in SECTIONS.items():
        add_setting_flags(parser.add_argument_group(section, meaning), in_section(section))
    return parser


def add_setting_flags(group: argparse._ActionsContainer, settings: Iterable[Setting]) -> None:
    """Add the flags of settings to a parser or to a group of it, for `read_settings`."""
    for setting in settings:
        group.add_argument(setting.flag, default=argparse.SUPPRESS, **_argument(setting))


def add_checkpoint_flag(parser: CommandParser) -> None:
    parser.add_argument(
        "--checkpoint", help="a checkpoint such as step-002000; by default the best, or else the newest"
    )


def read_settings(parser: CommandParser, argv: Sequence[str]) -> tuple[Config, argparse.Namespace]:
    """Return the settings (flags over the file of --config over the defaults) and the values of a command's own flags.

    Args:
        parser: from `settings_parser` or with flags from `add_setting_flags`, perhaps with flags of the command's own.
        argv: without the program's name.

    Raises:
        ConfigError: a flag, a value or the file is wrong.
    """
    values = vars(parser.parse(argv))
    path = values.pop("config", None)
    options = argparse.Namespace(**{name: value for name, value in values.items() if name not in SETTINGS})
    overrides = {name: value for name, value in values.items() if name in SETTINGS}
    return load(path, {n: tuple(v) if isinstance(v, list) else v for n, v in overrides.items()}), options


def _hyphenated(argument: str) -> str:
    """`--data_gpu=0` as `--data-gpu=0`."""
    return re.sub(r"^--[^=]*", lambda name: name[0].replace("_", "-"), argument)


def _argument(setting: Setting) -> dict[str, Any]:
    """The options of `add_argument` for a setting."""
    meaning = setting_help(setting).replace("%", "%%")
    if setting.kind is bool:
        return {"action": argparse.BooleanOptionalAction, "help": meaning}
    metavar = "{" + ",".join(setting.choices) + "}" if setting.choices else _METAVARS[setting.kind]
    options: dict[str, Any] = {"type": _converter(setting), "metavar": metavar, "help": meaning}
    return options | {"nargs": "*"} if setting.many else options


def setting_help(setting: Setting) -> str:
    """Return the help of a setting's flag, which names other settings by their flags."""
    description = _SETTING_NAMES.sub(lambda match: SETTINGS[match[0]].flag, setting.description)
    if setting.kind is bool:
        return f"{description} (default: {'on' if setting.default else 'off'})"
    default = "not set" if setting.default in (None, ()) else setting.default_text
    return f"{description} ({setting.allowed.removesuffix(', or null')}; default: {default})"


def _converter(setting: Setting) -> Callable[[str], Any]:
    """Return a function from text to value. Text that does not convert stays text, and the schema rejects it."""

    def convert(text: str) -> Any:
        if setting.nullable and text == "null":
            return None
        try:
            return setting.kind(text)
        except ValueError:
            return text

    return convert
