"""The console script `myxtts`, and the scripts of a checkout that run one of its commands.

Each command is a module of the group `commands` (`base/plugins`) with its name (NAME), one line
about it (HELP), the extra of pyproject.toml that it needs (EXTRA), if any, and `main(argv, prog)`,
which returns the exit code. A command imports TensorFlow only once its arguments are known to be
right.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from myxtts.base import plugins
from myxtts.base.console import filter_stderr, report_errors
from myxtts.base.errors import ConfigError, check_packages
from myxtts.base.processes import exit_at_sigterm
from myxtts.config.parser import local_path, parser_of

COMPLETION = "--print-completion"
# By extras of pyproject.toml, the package that shows whether one is installed.
NEEDED_BY = {"train": "tensorflow"}
# Commands that handle SIGTERM themselves. In the others it raises SystemExit, which removes
# unfinished files.
WITH_OWN_STOP = ("train", "voice", "launch", "jobs", "check-distributed")


def main() -> int:
    """Run the command that the arguments of this process name."""
    is_module = Path(sys.argv[0]).name == "__main__.py"
    if is_module:
        _share_checkout()
    filter_stderr()
    return report_errors(lambda: run(sys.argv[1:], "python -m myxtts" if is_module else "myxtts"))


def run_script(command: ModuleType) -> int:
    """Run one command as a script of the checkout, with the arguments of this process."""
    _share_checkout()
    filter_stderr()
    return report_errors(lambda: _main_of(command, sys.argv[1:], f"python {sys.argv[0]}"))


def _share_checkout() -> None:
    """Let processes that the command starts import the package from this checkout, too."""
    root = str(Path(__file__).parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))


def run(argv: Sequence[str], prog: str = "myxtts") -> int:
    """Run `COMMAND [ARGUMENT ...]`; raises ConfigError if the command is unknown."""
    commands = plugins.names("commands")
    if not argv or argv[0] in ("-h", "--help", "help"):
        lines = [f"  {name:<17}  {load_command(name).HELP}" for name in commands]
        print(f"usage: {prog} COMMAND [ARGUMENT ...]", "", *lines, "", sep="\n")
        print(f"{prog} COMMAND --help lists the flags of a command.")
        return 0
    if argv[0] == COMPLETION:
        print_completion(" ".join(argv[1:]))
        return 0
    name = argv[0]
    if name not in commands:
        from myxtts.config.advice import command_of, nearest  # takes a while, as the schema does

        near = command_of(name) or nearest(name, commands)
        hint = f"Did you mean {near}?" if near else f"Use one of {', '.join(commands)}."
        raise ConfigError(f"{name[:60]!r} is not a command. {hint}")
    return _main_of(load_command(name), argv[1:], f"{prog} {name}")


# A missing package is reported with the command that installs it, before the arguments are read,
# but --help always works. A SIGTERM ends most commands by SystemExit, so that their scopes are left
# and temporary files go.
def _main_of(command: ModuleType, argv: Sequence[str], prog: str) -> int:
    extra = getattr(command, "EXTRA", "")
    package = NEEDED_BY.get(extra, "")
    if package and find_spec(package) is None and not {"-h", "--help"} & {*argv}:
        raise ConfigError(
            f"{prog} needs {package}, which this Python does not have. Run: pip install"
            f' "myxtts[{extra}]"'
        )
    with nullcontext() if command.NAME in WITH_OWN_STOP else exit_at_sigterm():
        return command.main(argv, prog)


def load_command(name: str) -> ModuleType:
    return plugins.load_one("commands", name)


def print_completion(shell: str) -> None:
    """Print the script of a shell's completion, which shtab makes of the commands' parsers.

    Raises ConfigError if shtab is missing or lacks the shell.
    """
    check_packages(COMPLETION, "shtab")
    import shtab

    from myxtts.config.flags import SETTINGS

    if shell not in shtab.SUPPORTED_SHELLS:
        known = ", ".join(shtab.SUPPORTED_SHELLS)
        raise ConfigError(f"{COMPLETION} {shell!r} is not a known shell. Use one of {known}.")
    parser = argparse.ArgumentParser("myxtts")
    added = parser.add_subparsers()
    for command in plugins.load("commands"):
        made = parser_of(command.main)
        for action in made._actions:
            is_path = isinstance(action.type, partial) and action.type.func is local_path
            if setting := SETTINGS.get(action.dest):
                action.choices = setting.choices or None
                is_path |= setting.kind is str and not setting.choices
            # Texts complete as files, too, because shtab turns off bash's own completion of them.
            if is_path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        added.add_parser(command.NAME, parents=[made], add_help=False, help=command.HELP)
    print(shtab.complete(parser, shell))
