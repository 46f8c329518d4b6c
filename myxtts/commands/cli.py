"""The command line of a run: flags → Config → training → exit code.

The flags are the settings of the schema: `data.batch_size` is `--batch-size`. Their texts are only
converted here; what is allowed is decided in one place, for flags and YAML alike.
"""

import argparse
import errno
import logging
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from myxtts.config.load import dump, load, shown
from myxtts.config.schema import Config
from myxtts.config.settings import SECTIONS, SETTINGS, Setting, in_section, nearest
from myxtts.errors import ConfigError, UserError

_DISK_REFUSES = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}
_METAVARS = {int: "N", float: "X", str: "TEXT"}


@dataclass(frozen=True)
class Arguments:
    """What a command line asks for."""

    config: Config
    print_config: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:
        raise ConfigError(f"{message.removeprefix('argument ')}. --help lists the flags.")

    def flags(self) -> list[str]:
        return [flag for flag in self._option_string_actions if flag.startswith("--")]


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says; return the exit code (DESIGN §5)."""
    return report_errors(lambda: _train(sys.argv[1:] if argv is None else argv))


def _train(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    if arguments.print_config:
        print(dump(arguments.config), end="")
        return 0
    from myxtts import run  # imports TensorFlow, which takes seconds

    config = arguments.config
    if config.placement.placement == "auto":
        from myxtts.planner.auto import choose_placement
        from myxtts.profiling.measure import measure_stage_times

        config = choose_placement(config, measure_stage_times)
    return run.train(config)


def report_errors(program: Callable[[], int]) -> int:
    """Run a program of the command line: its log on the console, a user's error as its message; gives the exit code."""
    _log_to_console()
    _quieten_tensorflow()
    _number_gpus_as_the_driver()
    try:
        return program()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in _DISK_REFUSES:
            raise
        print(
            f"error: {error.filename or 'a file'}: {error.strerror}. Free space or mend the rights there.",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def bounded(kind: type, low: float, high: float = math.inf) -> Callable[[str], Any]:
    """An argparse type of programs beside train_main.py: a number of a kind, from `low` to `high`."""

    def number(text: str) -> Any:
        value = kind(text)
        if not low <= value <= high:
            allowed = f"{low:g} or more" if high == math.inf else f"from {low:g} to {high:g}"
            raise argparse.ArgumentTypeError(f"{text} is not {allowed}")
        return value

    return number


class _Console(logging.Handler):
    """Lines of the log on stdout, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stdout)
        sys.stdout.flush()


def _log_to_console() -> None:
    package = logging.getLogger("myxtts")
    package.setLevel(logging.INFO)
    package.handlers = [_Console()]
    package.propagate = False


def _quieten_tensorflow() -> None:
    """Hide what TensorFlow's C++ logs, unless the user asks for it or a GPU could be meant.

    Without an NVIDIA driver it reports as an error that CUDA cannot start (level 2 of 3). Some lines that it prints
    while it is imported heed no level.
    """
    has_driver = os.path.exists("/proc/driver/nvidia/version")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1" if has_driver else "3")


def _number_gpus_as_the_driver() -> None:
    """GPU 0 is then that of nvidia-smi, too; CUDA by itself puts the fastest first."""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def parse(argv: Sequence[str]) -> Arguments:
    """Flags over the file of --config over the defaults. Raises ConfigError; --help prints and exits with 0."""
    parser = settings_parser(
        prog="train_main.py",
        description="Train a voice or a recogniser: batches are made on one device while the model trains on another.",
    )
    parser.add_argument("--print-config", action="store_true", help="print the resolved settings as YAML, and stop")
    config, own = read_settings(parser, argv)
    return Arguments(config, own.print_config)


def settings_parser(prog: str, description: str) -> _Parser:
    """A parser of --config and of every setting's flag, for train_main.py and for scripts that do what a run does.

    A script adds its own flags by `add_argument`, and then has `read_settings` read the command line.
    """
    parser = _Parser(
        prog=prog,
        usage=f"python {prog} [--config FILE] [--FLAG VALUE ...]",
        description=description,
        epilog="Flags replace the values of --config, and these the defaults. Every flag may be spelled with _ for -.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="YAML file of settings, by section")
    for section, meaning in SECTIONS.items():
        group = parser.add_argument_group(section, meaning)
        for setting in in_section(section):
            group.add_argument(setting.flag, default=argparse.SUPPRESS, **_form(setting))
    return parser


def read_settings(parser: _Parser, argv: Sequence[str]) -> tuple[Config, argparse.Namespace]:
    """Flags over the file of --config over the defaults, and the values of a script's own flags.

    Args:
        parser: as `settings_parser` gives it, perhaps with flags of the script's own.
        argv: without the name of the program.

    Raises:
        ConfigError: a flag, a value or the file is refused. --help prints and exits with 0.
    """
    flags, unknown = parser.parse_known_args([_hyphens(argument) for argument in argv])
    if unknown:
        raise ConfigError(_unknown(unknown[0], parser.flags()))
    values = vars(flags)
    path = values.pop("config")
    own = argparse.Namespace(**{name: value for name, value in values.items() if name not in SETTINGS})
    overrides = {name: value for name, value in values.items() if name in SETTINGS}
    return load(path, {n: tuple(v) if isinstance(v, list) else v for n, v in overrides.items()}), own


def _hyphens(argument: str) -> str:
    """`--data_gpu=0` as `--data-gpu=0`."""
    return re.sub(r"^--[^=]*", lambda name: name[0].replace("_", "-"), argument)


def _unknown(argument: str, flags: Sequence[str]) -> str:
    near = nearest(argument.partition("=")[0], flags)
    if near:
        return f"{shown(argument)} is not a flag. Did you mean {near}?"
    return f"{shown(argument)} is not a flag and belongs to none. --help lists the flags."


def _form(setting: Setting) -> dict[str, Any]:
    """How argparse takes the flag of a setting."""
    words = f"{setting.description} ({setting.allowed}; default {setting.default_text})".replace("%", "%%")
    if setting.kind is bool:
        return {"action": argparse.BooleanOptionalAction, "help": words}
    metavar = "{" + ",".join(setting.choices) + "}" if setting.choices else _METAVARS[setting.kind]
    form = {"type": _reader(setting), "metavar": metavar, "help": words}
    return form | {"nargs": "*"} if setting.many else form


def _reader(setting: Setting) -> Callable[[str], Any]:
    """Text → value. Text that is no such value stays text, for the schema to refuse."""

    def read(text: str) -> Any:
        if setting.nullable and text == "null":
            return None
        try:
            return setting.kind(text)
        except ValueError:
            return text

    return read
