"""The parsers of commands: flags → options, and advice on unknown flags.

Commands that only speak do not wait for the schema, which takes a third of a second: the flags of
its settings are in `settings_parser`.
"""

import argparse
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from myxtts.base.errors import ConfigError, format_value
from myxtts.base.members import check_local
from myxtts.base.names import canonical_name
from myxtts.config.synthesis import BOUNDS

_NO_ARGUMENTS: Sequence[str] = ("",)  # for `parser_of`
_NOUNS = {int: "whole number", float: "number"}
_FLAG = re.compile(r"--?[A-Za-z].*", re.DOTALL)
PRECISIONS = ("float32", "float16", "int8")  # of an exported voice
SPEAKERS = "a speaker and a recording of half a second or longer; by default those of the corpus"


class _Made(Exception):
    """Carries the parser of a command."""


class CommandParser(argparse.ArgumentParser):
    """A parser that raises ConfigError instead of exiting.

    Every flag may be spelled with _ for -, and none may be abbreviated.
    """

    def __init__(self, prog: str, description: str, **options: Any):
        super().__init__(prog=prog, description=description, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ")
        # The type that `bounded` returns has written the whole sentence.
        if ", but must be " in message:
            raise ConfigError(message.replace(": is ", " is ", 1))
        message = re.sub(": expected (at least )?one argument", " needs a value", message)
        raise ConfigError(f"{message}. --help lists the flags.")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments without the program's name; raises ConfigError."""
        if argv is _NO_ARGUMENTS:
            raise _Made(self)
        # Behind -- the words are for another program.
        end = argv.index("--") if "--" in argv else len(argv)
        # --data_gpu=0 is --data-gpu=0.
        hyphenated = partial(re.sub, r"^--[^=]*", lambda name: name[0].replace("_", "-"))
        words = [*map(hyphenated, argv[:end])]
        try:
            options, unknown = self.parse_known_args([*words, *argv[end:]])
        except ConfigError as error:
            # A misspelt flag explains why a required one is missing.
            typed = (word.partition("=")[0] for word in words if _FLAG.fullmatch(word))
            unknown = [flag for flag in typed if flag not in self.flags]
            if not unknown or not str(error).startswith("the following arguments are required"):
                raise
        if not unknown:
            return options
        from myxtts.config.advice import advice_on_flag, command_of

        # Hydra's settings have no hyphens: training.lr=1e-3.
        named = [word.partition("=")[0] for word in unknown if _FLAG.fullmatch(word) or "=" in word]
        command = next(filter(None, map(command_of, self.prog.split())), "")
        lines = [
            f"{format_value(flag)} is not a flag{advice_on_flag(flag, command, self.flags)}"
            for flag in dict.fromkeys(named)
        ]
        stray = "is neither a flag nor the value of one. --help lists the flags."
        raise ConfigError("\n".join(lines) or f"{format_value(unknown[0])} {stray}")

    @property
    def flags(self) -> list[str]:
        return [flag for flag in self._option_string_actions if flag.startswith("--")]


def parser_of(main: Callable[[Sequence[str]], int]) -> CommandParser:
    """Return the parser that the main function of a command makes first."""
    try:
        main(_NO_ARGUMENTS)
    except _Made as made:
        return made.args[0]
    raise AssertionError(main)


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
            found = f"is {format_value(text)}, but must be a {_NOUNS[kind]} {bounds}."
            raise argparse.ArgumentTypeError(found)
        return value

    return number


def add_flag(
    parser: argparse._ActionsContainer,
    name: str,
    meaning: str,
    kind: Callable[[str], Any] = str,
    metavar: str | None = None,
    **options: Any,
) -> None:
    """Add a flag with a value to a parser or to a group of it; a path must be local."""
    if kind is Path:
        kind = partial(local_path, name)
    parser.add_argument(name, help=meaning, type=kind, metavar=metavar, **options)


def local_path(flag: str, text: str) -> Path:
    check_local(text, flag)
    return Path(text)


def add_voice_flag(parser: argparse._ActionsContainer, **options: Any) -> None:
    """Add --voice, for `open_speaker`."""
    kinds = "name of a voice, an exported folder, a file *.onnx of Piper or MyXTTS, or a run"
    add_flag(parser, "--voice", kinds, **options)


def add_option(
    parser: argparse._ActionsContainer, flag: str, name: str, meaning: str, **options: Any
) -> None:
    """Add a flag for an option of synthesis, with the bounds of the option."""
    kind, low, high = BOUNDS[name]
    meaning = f"{meaning} ({low:.15g} to {high:.15g})"
    add_flag(parser, flag, meaning, bounded(kind, low, high), dest=name, **options)


def add_switch(parser: argparse._ActionsContainer, name: str, meaning: str) -> None:
    parser.add_argument(name, help=meaning, action="store_true")


def add_checkpoint_flag(
    parser: argparse._ActionsContainer, default: str = "the best, or else the newest"
) -> None:
    add_flag(parser, "--checkpoint", f"a checkpoint such as step-002000; by default {default}")


def add_lexicon_flag(parser: CommandParser) -> None:
    words = "file of words and their readings, besides those of the run"
    add_flag(parser, "--lexicon", words, Path, "FILE")


def add_json_flag(parser: argparse._ActionsContainer) -> None:
    add_flag(parser, "--json", "write the figures as JSON", Path, "FILE", dest="json_file")


def add_references_flag(parser: argparse._ActionsContainer, meaning: str) -> None:
    """Add --reference NAME=FILE, which returns a dict of the files of each name."""
    options: dict[str, Any] = {"action": _AddReference, "dest": "references", "default": {}}
    add_flag(parser, "--reference", meaning, _speaker_reference, "NAME=FILE", **options)


def add_precision_flag(parser: argparse._ActionsContainer) -> None:
    meaning = f"write only the files of this precision; can be repeated (default: {PRECISIONS})"
    options: dict[str, Any] = {"action": "append", "dest": "precisions", "choices": PRECISIONS}
    add_flag(parser, "--precision", meaning, **options)


class _AddReference(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None) -> None:
        name, path = values
        getattr(namespace, self.dest).setdefault(name, []).append(path)


def _speaker_reference(text: str) -> tuple[str, Path]:
    """Return the name and the path of NAME=FILE."""
    name, _, path = text.partition("=")
    if not canonical_name(name) or not path:
        found = f"is {text!r}, but must be NAME=FILE, such as anna=anna.wav."
        raise argparse.ArgumentTypeError(found)
    return canonical_name(name), Path(path)


def add_vocoder_flag(parser: argparse._ActionsContainer) -> None:
    meaning = (
        "run of a vocoder, a file of one (*.onnx), or griffin-lim; by default what the run names"
    )
    add_flag(parser, "--vocoder", meaning, metavar="RUN")


def add_vocoder_flags(parser: CommandParser) -> None:
    add_vocoder_flag(parser)
    add_option(parser, "--iterations", "iterations", "iterations of Griffin-Lim (default 30)")
