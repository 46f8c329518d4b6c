"""`myxtts launch`: run a program as each worker of a distributed job on this machine."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.base import plugins
from myxtts.base.errors import ConfigError
from myxtts.config.advice import command_of
from myxtts.config.parser import CommandParser, add_flag, bounded
from myxtts.distributed.cluster import check_addresses
from myxtts.distributed.launcher import launch, local_workers

NAME = "launch"
HELP = "Start the workers of a distributed run, and stop all of them when one fails."
USAGE = "[--workers N | --nodes HOST:PORT,... --node-rank N] [--FLAG VALUE ...] -- PROGRAM [...]"
EPILOG = (
    "PROGRAM is a Python file, -m and a module, or a command of myxtts such as train. The exit code"
    " is 0, or that of the worker that failed (128 + the number of a signal); 130, 143 and 129 when"
    " stopped."
)


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    about = f"{HELP} The output of the workers is shown here and kept in their logs."
    parser = CommandParser(prog, about, usage=f"{prog} {USAGE}", epilog=EPILOG)
    add_worker_flags(parser)
    add_flag(parser, "--logs", "folder for worker-N.log (default logs)", Path, default=Path("logs"))
    cores = "pin each worker to N cores of its own"
    add_flag(parser, "--cores-per-worker", cores, bounded(int, 1), "N", default=0)
    gpus = (
        "show each worker N GPUs of its own, 0 hides all (default: workers that train divide all)"
    )
    add_flag(parser, "--gpus-per-worker", gpus, bounded(int, 0), "N")
    program = "program of each worker, with its arguments"
    add_flag(parser, "program", program, metavar="-- PROGRAM", nargs=argparse.REMAINDER)
    options = parser.parse(argv)
    # The parser writes - for _ in flags, and another program may not know that spelling.
    options.program = list(argv[len(argv) - len(options.program) :])
    return options


def add_worker_flags(parser: CommandParser) -> None:
    """Add the flags that say where the workers run."""
    group = parser.add_mutually_exclusive_group()
    add_flag(group, "--workers", "workers on this machine (default 2)", bounded(int, 1, 1000), "N")
    nodes = "addresses of several machines, one worker on each"
    add_flag(group, "--nodes", nodes, metavar="HOST:PORT,...")
    add_flag(parser, "--node-rank", "position of this machine in --nodes", bounded(int, 0), "N")


def worker_addresses(options: argparse.Namespace) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the addresses of all workers, and the indices of those to start on this machine."""
    rank = options.node_rank
    if options.nodes is None:
        if rank is not None:
            raise ConfigError("--node-rank was given without --nodes. Leave it out.")
        count = options.workers or 2
        return local_workers(count), tuple(range(count))
    workers = check_addresses([address.strip() for address in options.nodes.split(",")], "--nodes")
    if rank is None or rank >= len(workers):
        found = "missing" if rank is None else rank
        raise ConfigError(
            f"--nodes names {len(workers)} machines, and --node-rank is {found}. Give 0 for the"
            f" first of them to {len(workers) - 1} for the last."
        )
    return workers, (rank,)


# The program may be a command of myxtts, a Python file, or -m and a module. A file of the same name
# wins over a command. Whatever the launcher cannot find is reported before a worker starts.
def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    program = [word for i, word in enumerate(options.program) if i or word != "--"]
    if program and program[0] in plugins.GROUPS["commands"] and not Path(program[0]).is_file():
        program = ["-m", "myxtts", *program]
    if not program:
        raise ConfigError("no program was given. Name it after --, such as -- train --run first.")
    if not program[0].startswith("-") and not Path(program[0]).exists():
        command = command_of(program[0])
        hint = f"Use -- {command} for it." if command else "Name a Python file or a command."
        raise ConfigError(f"there is no program {program[0]} in {Path.cwd()}. {hint}")
    workers, local = worker_addresses(options)
    cores, gpus = options.cores_per_worker, options.gpus_per_worker
    return launch(program, workers, local, options.logs, cores, gpus)
