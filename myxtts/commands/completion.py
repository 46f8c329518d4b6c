"""`myxtts --print-completion SHELL`: what a shell completes, by shtab from the parsers."""

import argparse
from collections.abc import Iterable
from functools import partial
from types import ModuleType

from myxtts.commands.parser import local_path, parser_of
from myxtts.config.flags import SETTINGS
from myxtts.errors import ConfigError, check_packages

FLAG = "--print-completion"


def print_completion(shell: str, commands: Iterable[ModuleType]) -> None:
    """Print a script for a shell; raises ConfigError if shtab is missing or lacks the shell."""
    check_packages(FLAG, "shtab")
    import shtab

    if shell not in shtab.SUPPORTED_SHELLS:
        known = ", ".join(shtab.SUPPORTED_SHELLS)
        raise ConfigError(f"{FLAG} {shell!r} is not a known shell. Use one of {known}.")
    parser = argparse.ArgumentParser("myxtts")
    added = parser.add_subparsers()
    for command in commands:
        made = parser_of(command.main)
        for action in made._actions:
            is_path = isinstance(action.type, partial) and action.type.func is local_path
            if setting := SETTINGS.get(action.dest):
                action.choices = setting.choices or None
                is_path |= setting.kind is str and not setting.choices
            # Not only of paths: shtab also turns off bash's own completion of files.
            if is_path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        added.add_parser(command.NAME, parents=[made], add_help=False, help=command.HELP)
    print(shtab.complete(parser, shell))
