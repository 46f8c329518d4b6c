"""`myxtts launch`: run a program as each worker of a distributed job on this machine."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from myxtts.commands.main import COMMANDS
from myxtts.commands.parser import CommandParser, bounded
from myxtts.distributed.cluster import check_addresses
from myxtts.distributed.launcher import LaunchSpec, find_program, launch, local_workers
from myxtts.errors import ConfigError

NAME = "launch"
HELP = "Start the workers of a distributed run, and stop all of them when one fails."


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(
        prog=prog,
        usage=(
            f"{prog} [--workers N | --nodes HOST:PORT,... --node-rank N] [--FLAG VALUE ...] -- "
            "PROGRAM [ARGUMENT ...]"
        ),
        description=f"{HELP} The output of the workers is shown here and kept in their logs.",
        epilog=(
            "PROGRAM is a Python file, -m and a module, or a command of myxtts such as train. The"
            " exit code is 0, or the exit code of the worker that failed (128 + the number of a"
            " signal); 130, 143 and 129 when stopped."
        ),
    )
    add_worker_flags(parser)
    parser.add_argument(
        "--logs", type=Path, default=Path("logs"), help="folder for worker-N.log (default logs)"
    )
    parser.add_argument(
        "--cores-per-worker",
        metavar="N",
        type=bounded(int, 1),
        default=0,
        help="pin each worker to N cores of its own",
    )
    parser.add_argument(
        "--gpus-per-worker",
        metavar="N",
        type=bounded(int, 0),
        help="give each worker N GPUs of its own; 0 hides all GPUs",
    )
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="-- PROGRAM",
        help="program of each worker, with its arguments",
    )
    options = parser.parse(argv)
    # As typed: with _ in its flags.
    options.program = list(argv[len(argv) - len(options.program) :])
    return options


def add_worker_flags(parser: CommandParser) -> None:
    """Add the flags that say where the workers run."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--workers",
        metavar="N",
        type=bounded(int, 1, 1000),
        help="workers on this machine (default 2)",
    )
    group.add_argument(
        "--nodes", metavar="HOST:PORT,...", help="addresses of several machines, one worker on each"
    )
    parser.add_argument(
        "--node-rank", metavar="N", type=bounded(int, 0), help="position of this machine in --nodes"
    )


def worker_addresses(options: argparse.Namespace) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the addresses of all workers, and the indices of those to start on this machine."""
    if options.nodes is None:
        if options.node_rank is not None:
            raise ConfigError(
                "--node-rank was given without --nodes. Leave it out, or add --nodes."
            )
        count = options.workers or 2
        return local_workers(count), tuple(range(count))
    workers = check_addresses([address.strip() for address in options.nodes.split(",")], "--nodes")
    rank = options.node_rank
    if rank is None or rank >= len(workers):
        found = "is missing" if rank is None else f"is {rank}"
        raise ConfigError(
            f"--nodes names {len(workers)} machines, and --node-rank {found}. Give 0 on the first"
            f" of them to {len(workers) - 1} on the last."
        )
    return workers, (rank,)


def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    program = [word for i, word in enumerate(options.program) if i or word != "--"]
    if program and program[0] in COMMANDS and not Path(program[0]).is_file():
        program = ["-m", "myxtts", *program]
    command = find_program(program)
    workers, local = worker_addresses(options)
    return launch(
        LaunchSpec(
            command=command,
            workers=workers,
            local=local,
            logs=options.logs,
            cores_per_worker=options.cores_per_worker,
            gpus_per_worker=options.gpus_per_worker,
        )
    )
