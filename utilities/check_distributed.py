"""Say before a run on several workers whether they compute together what one computes alone, and how fast they add up.

python utilities/check_distributed.py                                                two workers on this machine
python utilities/check_distributed.py --nodes node1:2222,node2:2222 --node-rank 0    on each machine, with its own rank

Where TF_CONFIG or Slurm tells of a cluster, it is one of its workers. Exit codes: 0 all holds, 1 something does not,
2 a mistake that the message explains.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.cli import bounded, report_errors
from myxtts.distributed.cluster import Cluster, find_cluster
from myxtts.distributed.launcher import LaunchSpec, find_program, launch
from myxtts.errors import ConfigError
from utilities.launch_workers import add_machines, machines


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Say before a run on several workers whether they compute together what one computes alone, "
        "and how fast they add up."
    )
    add_machines(parser)
    parser.add_argument(
        "--gpus-per-worker",
        metavar="N",
        type=bounded(int, 0),
        help="GPUs of each worker that take part; all by default, and none of workers on one machine",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = parse(arguments)
    cluster = find_cluster(os.environ)
    if cluster is None:
        return start(asked)
    if asked.workers or asked.nodes:
        raise ConfigError(
            f"--workers and --nodes start workers, but the environment says that this is {cluster.name()} of "
            f"{cluster.count}. Leave them out."
        )
    return work(cluster, asked.gpus_per_worker)


def start(asked: argparse.Namespace) -> int:
    """Start the workers of this machine, which come back here as such."""
    workers, own = machines(asked)
    if len(workers) < 2:
        raise ConfigError("one worker was asked for, which has none to be compared with. Ask for two or more.")
    gpus = asked.gpus_per_worker if asked.nodes else asked.gpus_per_worker or 0
    command = find_program([__file__, *(() if gpus is None else ("--gpus-per-worker", str(gpus)))])
    return launch(LaunchSpec(command, workers, own, Path("logs") / "check_distributed", gpus_per_worker=gpus))


def work(cluster: Cluster, gpus: int | None) -> int:
    """The part of one worker; the chief tells what was found."""
    from myxtts.preflight.checks import lines  # imports TensorFlow, which takes seconds
    from myxtts.preflight.distributed import checks_of, examine, table_of

    found = examine(cluster, gpus)
    if cluster.is_chief:
        print(f"{found.workers} workers, {found.replicas} replicas, each on a {found.kind}")
        print("\n".join(line for made in checks_of(found) for line in lines(made)))
        print("\n".join(table_of(found)))
    return 0 if found.holds else 1


if __name__ == "__main__":
    sys.exit(report_errors(main))
