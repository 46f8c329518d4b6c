"""Start the workers of a job, show and keep what they print, and end all when one dies.

python utilities/launch_workers.py --workers 2 -- train_main.py --config configs/demo.yaml --run two_workers
python utilities/launch_workers.py --nodes node1:2222,node2:2222 --node-rank 0 -- train_main.py --train-data CORPUS

The first trains with two workers on this machine, the second is run on each of two machines, with its own rank.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.cli import bounded, report_errors
from myxtts.distributed.cluster import check_addresses
from myxtts.distributed.launcher import LaunchSpec, find_program, launch, local_workers
from myxtts.errors import ConfigError


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        usage="python utilities/launch_workers.py [--workers N | --nodes HOST:PORT,... --node-rank N] "
        "[--FLAG VALUE ...] -- PROGRAM [ARGUMENT ...]",
        description="Start the workers of a job, show and keep what they print, and end all when one dies.",
        epilog="PROGRAM is a Python file, or -m and a module. Exit code: 0, or that of the worker that died "
        "(128 + the number of a signal); 130 and 143 when stopped.",
    )
    add_machines(parser)
    parser.add_argument("--logs", type=Path, default=Path("logs"), help="folder for worker-N.log (default logs)")
    parser.add_argument(
        "--cores-per-worker", metavar="N", type=bounded(int, 1), default=0, help="pin each worker to N cores of its own"
    )
    parser.add_argument(
        "--gpus-per-worker", metavar="N", type=bounded(int, 0), help="show each worker N GPUs of its own; 0 hides all"
    )
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM", help="what each worker runs")
    return parser.parse_args(arguments)


def add_machines(parser: argparse.ArgumentParser) -> None:
    """Flags that say where the workers are."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--workers", metavar="N", type=bounded(int, 1, 1000), help="workers on this machine (default 2)")
    which.add_argument("--nodes", metavar="HOST:PORT,...", help="addresses of several machines, one worker each")
    parser.add_argument("--node-rank", metavar="N", type=bounded(int, 0), help="which of --nodes this machine is")


def machines(asked: argparse.Namespace) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Addresses of all workers, and indices of those to start here."""
    if asked.nodes is None:
        if asked.node_rank is not None:
            raise ConfigError("--node-rank was given without --nodes, which it is for. Leave it out.")
        count = asked.workers or 2
        return local_workers(count), tuple(range(count))
    workers = check_addresses([address.strip() for address in asked.nodes.split(",")], "--nodes")
    rank = asked.node_rank
    if rank is None or rank >= len(workers):
        raise ConfigError(
            f"--nodes names {len(workers)} machines, and --node-rank {'is missing' if rank is None else f'is {rank}'}. "
            f"Give 0 on the first of them to {len(workers) - 1} on the last."
        )
    return workers, (rank,)


def main(arguments: list[str] | None = None) -> int:
    asked = parse(arguments)
    command = find_program(asked.program)
    workers, own = machines(asked)
    return launch(LaunchSpec(command, workers, own, asked.logs, asked.cores_per_worker, asked.gpus_per_worker))


if __name__ == "__main__":
    sys.exit(report_errors(main))
