"""`myxtts check-distributed`: compare several workers with one, in results and in speed.

Without TF_CONFIG or Slurm the command starts the workers itself; with them it is one of the
workers. Exit codes: 0 all checks passed, 1 a check failed, 2 a mistake in the call.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from myxtts.base.errors import ConfigError
from myxtts.commands.launch import add_worker_flags, worker_addresses
from myxtts.config.parser import CommandParser, add_flag, bounded
from myxtts.distributed.cluster import Cluster, find_cluster
from myxtts.distributed.launcher import launch

NAME = "check-distributed"
HELP = "Check that several workers compute the same as one worker, and how fast they are together."
EXTRA = "train"


def parse(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> argparse.Namespace:
    parser = CommandParser(prog, HELP)
    add_worker_flags(parser)
    gpus = "GPUs that each worker uses; by default its share, and none for workers on one machine"
    add_flag(parser, "--gpus-per-worker", gpus, bounded(int, 0), "N")
    return parser.parse(argv)


# Without an environment that names the workers, this process is the launcher: it starts one process
# for each worker with the same command, which then finds the environment and runs the checks.
def main(argv: Sequence[str], prog: str = f"myxtts {NAME}") -> int:
    options = parse(argv, prog)
    cluster = find_cluster(os.environ)
    if cluster is not None:
        if options.workers or options.nodes:
            this = f"in the environment this is {cluster.name()} of {cluster.count}"
            raise ConfigError(f"--workers and --nodes start workers, but {this}. Leave them out.")
        return run_worker(cluster, options.gpus_per_worker)
    workers, local = worker_addresses(options)
    if len(workers) < 2:
        found = "one worker was requested, but the check compares several with one"
        raise ConfigError(f"{found}. Request two with --workers 2, or name more --nodes.")
    gpus = options.gpus_per_worker
    # Workers on one machine use no GPU unless they are given some.
    if gpus is None and not options.nodes:
        gpus = 0
    gpu_flags = () if gpus is None else ("--gpus-per-worker", str(gpus))
    program = ("-m", "myxtts", NAME, *gpu_flags)
    logs = Path("logs") / "check_distributed"
    return launch(program, workers, local, logs, gpus_per_worker=gpus)


def run_worker(cluster: Cluster, gpus: int | None) -> int:
    """Run the checks as one worker; the chief prints the results."""
    # These import TensorFlow, which takes seconds.
    from myxtts.trial.preflight.checks import check_lines
    from myxtts.trial.preflight.distributed import all_reduce_table, check_cluster, cluster_checks

    result = check_cluster(cluster, gpus)
    checks = [*cluster_checks(result)]
    if cluster.is_chief:
        device = result.device_type
        print(f"{result.workers} workers, {result.replicas} replicas, each on a {device}")
        for check in checks:
            print("\n".join(check_lines(check)))
        print("\n".join(all_reduce_table(result)))
    return 0 if all(check.status == "passed" for check in checks) else 1
