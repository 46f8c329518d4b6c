"""The parsers of commands: flags → settings and options, and advice on unknown flags.

The flags of a run are the settings of the schema: `data.batch_size` is `--batch-size`. This module
only converts their text; the schema decides which values are allowed, for flags and YAML alike.
"""

import argparse
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from myxtts.config.flags import SECTIONS, SETTINGS, Setting, advice_on_flag, in_section
from myxtts.config.load import config_of_run, format_value, load
from myxtts.config.schema import Config
from myxtts.errors import ConfigError

RESUMING = (
    "`--resume --run NAME` without --config and --train-data takes the settings of the run from its"
    " config.yaml."
)
_METAVARS = {int: "N", float: "X", str: "TEXT"}
_NOUNS = {int: "whole number", float: "number"}
_FLAG = re.compile(r"--?[A-Za-z].*", re.DOTALL)
_SETTING_NAMES = re.compile(rf"\b({'|'.join(name for name in SETTINGS if '_' in name)})\b")


class CommandParser(argparse.ArgumentParser):
    """A parser that raises ConfigError instead of exiting.

    Every flag may be spelled with _ for -, and none may be abbreviated.
    """

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        # The type that `bounded` returns has written the whole sentence.
        if ", but must be " in message:
            raise ConfigError(message.replace(": is ", " is ", 1))
        message = re.sub(": expected (at least )?one argument", " needs a value", message)
        is_missing = message.startswith("the following arguments are required")
        kind = _MissingFlagError if is_missing else ConfigError
        raise kind(f"{message}. --help lists the flags.")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments without the program's name.

        Raises:
            ConfigError: a flag is unknown, a value is not allowed, or a required flag is missing.
        """
        # Behind -- the words are for another program.
        end = argv.index("--") if "--" in argv else len(argv)
        words = [*map(_hyphenated, argv[:end])]
        try:
            options, unknown = self.parse_known_args([*words, *argv[end:]])
        except _MissingFlagError:
            # A misspelt flag explains why a required one is missing.
            flags = filter(_FLAG.fullmatch, words)
            unknown = [flag for flag in flags if flag.partition("=")[0] not in self.flags()]
            if not unknown:
                raise
        if unknown:
            raise ConfigError(self._describe_unknown(unknown))
        return options

    def flags(self) -> list[str]:
        """The flags of this parser and of its subcommands."""
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for parser in action.choices.values():
                    flags += parser.flags()
        return flags

    def _describe_unknown(self, words: Sequence[str]) -> str:
        """Return the message for words that are neither flags nor values, a line for each flag."""
        flags = dict.fromkeys(word.partition("=")[0] for word in words if _FLAG.fullmatch(word))
        if flags:
            known = self.flags()
            return "\n".join(
                f"{format_value(flag)} is not a flag{advice_on_flag(flag, known)}" for flag in flags
            )
        value = format_value(words[0])
        return f"{value} is neither a flag nor the value of one. --help lists the flags."


class _MissingFlagError(ConfigError):
    """A required flag is missing."""


def bounded(
    kind: type[int] | type[float], low: float, high: float = math.inf
) -> Callable[[str], Any]:
    """Return an argparse type: a number of a kind, from `low` to `high`."""
    bounds = f"of at least {low:.15g}" if high == math.inf else f"from {low:.15g} to {high:.15g}"

    def number(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(
                f"is {format_value(text)}, but must be a {_NOUNS[kind]} {bounds}."
            )
        return value

    return number


def settings_parser(prog: str, description: str, resuming: str = RESUMING) -> CommandParser:
    """Return a parser of --config and of a flag for each setting.

    Args:
        resuming: a sentence of the help on what `--resume` needs.
    """
    parser = CommandParser(
        prog=prog,
        usage=f"{prog} [--config FILE] [--FLAG VALUE ...]",
        description=description,
        epilog=(
            "Flags replace the values of --config, and these replace the defaults. Every flag may"
            " be spelled with _ for -. The value `null` unsets a flag whose default is not set."
            f" {resuming}"
        ),
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="YAML file of settings")
    for section, meaning in SECTIONS.items():
        add_setting_flags(parser.add_argument_group(section, meaning), in_section(section))
    return parser


def add_setting_flags(group: argparse._ActionsContainer, settings: Iterable[Setting]) -> None:
    """Add the flags of settings to a parser or to a group of it, for `read_settings`."""
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


def add_checkpoint_flag(parser: CommandParser) -> None:
    checkpoint = "a checkpoint such as step-002000; by default the best, or else the newest"
    parser.add_argument("--checkpoint", help=checkpoint)


def add_json_flag(parser: argparse._ActionsContainer) -> None:
    help_ = "write the figures as JSON"
    parser.add_argument("--json", dest="json_file", metavar="FILE", type=Path, help=help_)


def add_columns_flag(parser: CommandParser, corpus: str) -> None:
    parser.add_argument(
        "--columns",
        nargs="+",
        default=(),
        choices=SETTINGS["columns"].choices,
        help=f"columns of a file without a header that {corpus} names, as for `train`",
    )


def add_vocoder_flags(parser: CommandParser) -> None:
    parser.add_argument(
        "--vocoder",
        metavar="RUN",
        help="run of a vocoder, or griffin-lim; by default the vocoder that the run names, if any",
    )
    iterations = "iterations of Griffin-Lim (default 30)"
    parser.add_argument("--iterations", type=bounded(int, 1, 1000), help=iterations)


def read_settings(
    parser: CommandParser, argv: Sequence[str], own: Collection[str] = ()
) -> tuple[Config, argparse.Namespace]:
    """Return the settings and the values of a command's own flags.

    Flags replace the file of --config, which replaces the defaults. A run that is resumed without
    --config and --train-data takes its own config.yaml, if it has one.

    Args:
        parser: with flags from `settings_parser` or `add_setting_flags`.
        own: settings that the command sets later.

    Raises:
        ConfigError: a flag, a value or the file is wrong, or there is no run to resume.
    """
    values = vars(parser.parse(argv))
    path = values.pop("config", None)
    options = argparse.Namespace()
    overrides: dict[str, Any] = {}
    for name, value in values.items():
        if name not in SETTINGS:
            setattr(options, name, value)
        else:
            overrides[name] = tuple(value) if isinstance(value, list) else value
    # A command that names the corpus has all settings, as at the start of the run.
    if path is None and overrides.get("resume") and "train_data" not in overrides:
        place = {name: overrides.get(name, SETTINGS[name].default) for name in ("run", "runs_dir")}
        path = config_of_run(**place, may_be_new=bool(overrides.keys() - {*place, "resume"}))
        # An early stop is that of one start.
        overrides = {"stop_at_step": None} | overrides | place
    return load(path, overrides, own), options


def _hyphenated(argument: str) -> str:
    """`--data_gpu=0` as `--data-gpu=0`."""
    return re.sub(r"^--[^=]*", lambda name: name[0].replace("_", "-"), argument)
