"""`myxtts jobs`: train one model as independent jobs, one on each GPU, and merge them (local SGD).

Exit codes: 0 done; 1 the warm start or the merge failed, or the merged model is worse than the best
job, lacks a job or lacks updates of a job that missed syncs; 2 a mistake in the settings, and
nothing could be merged; 130 and 143 stopped after checkpoints (--resume continues).
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from myxtts.base.errors import ConfigError
from myxtts.base.processes import visible_gpus
from myxtts.checkpoints.inherited import with_inherited_settings
from myxtts.config import settings_parser as parsers
from myxtts.config.parser import CommandParser, add_flag, add_switch, bounded
from myxtts.config.schema import Config
from myxtts.distributed.cluster import find_cluster
from myxtts.extras.jobs.launcher import (
    JobsSpec,
    check_job_settings,
    check_launcher_settings,
    job_devices,
    previous_state,
    sync_interval,
    train_jobs,
)
from myxtts.extras.jobs.status import LauncherState, status_report, stop_launcher
from myxtts.placement.settings import hidden_gpus_warning

NAME = "jobs"
HELP = "Train independent jobs, one on each GPU, and merge their weights (local SGD)."
EXTRA = "train"
TRAINER = (sys.executable, "-u", "-m", "myxtts", "train")
MERGER = (sys.executable, "-u", "-m", "myxtts", "merge")

log = logging.getLogger("myxtts.extras.jobs")


def make_parser(prog: str = f"myxtts {NAME}") -> CommandParser:
    parser = parsers.settings_parser(
        prog,
        f"{HELP} A file FILE_gpu0.yaml next to --config FILE.yaml holds the settings of the job on"
        " GPU 0; it may list FILE under `defaults`.",
        resuming="--resume needs the other flags again, except --gpus.",
    )
    count = bounded(int, 0)
    add_flag(parser, "--gpus", "GPUs, one for each job", count, "N", nargs="+")
    steps = "steps of one run before the jobs (default: a tenth of max_steps, 0 with --init-from)"
    add_flag(parser, "--warmstart-steps", steps, count, "N")
    syncs = "number of syncs between the jobs; sets --sync-every"
    add_flag(parser, "--num-syncs", syncs, bounded(int, 1), "N")
    restarts = "maximum number of restarts of a failed job (default 2)"
    add_flag(parser, "--max-restarts", restarts, count, "N", default=2)
    group = parser.add_mutually_exclusive_group()
    add_switch(group, "--status", "print the progress of the jobs of --run and exit")
    add_switch(group, "--stop", "stop the jobs of --run after they write checkpoints")
    return parser


def main(
    argv: Sequence[str],
    prog: str = f"myxtts {NAME}",
    trainer: Sequence[str] = TRAINER,
    merger: Sequence[str] = MERGER,
) -> int:
    parser = make_parser(prog)
    config, options = read_settings(parser, argv)
    folder = config.run.folder
    if options.status or options.stop:
        print(status_report(folder) if options.status else stop_launcher(folder))
        return 0
    if cluster := find_cluster(os.environ):
        this = f"in the environment this is {cluster.name()} of {cluster.count}"
        raise ConfigError(f"independent jobs are started by one process, but {this}. Start one.")
    check_launcher_settings(config)
    previous = previous_state(folder, config.run.resume)
    total_steps = config.training.max_steps
    if previous is not None and previous.total_steps != total_steps:
        log.warning("--max-steps is %d; the jobs began with %d", total_steps, previous.total_steps)
    gpus = options.gpus or (previous and previous.immutable.gpus)
    if not gpus:
        raise ConfigError("no GPUs were named. Name one for each job, such as --gpus 0 1.")
    simulated = config.placement.simulate_gpus
    # Jobs on simulated GPUs see no real ones, and leave them idle.
    if simulated and (visible := len(visible_gpus())):
        log.warning("%s", hidden_gpus_warning(simulated, visible))
    devices = job_devices(gpus, simulated)
    warmstart_steps = choose_warmstart_steps(options, previous, config)
    job_configs = {}
    for gpu in gpus:
        file = options.config and options.config.with_stem(f"{options.config.stem}_gpu{gpu}")
        job = read_job_file(parser, argv, config, file) if file and file.is_file() else config
        job_configs[f"gpu{gpu}"] = with_inherited_settings(job)
    spec = JobsSpec(
        folder=folder,
        config=with_inherited_settings(config),
        job_configs=job_configs,
        gpus=tuple(gpus),
        devices=devices,
        warmstart_steps=warmstart_steps,
        sync_every=choose_sync_every(options, config, warmstart_steps),
        max_restarts=options.max_restarts,
        trainer=tuple(trainer),
        merger=tuple(merger),
    )
    return train_jobs(spec)


def read_settings(parser: CommandParser, argv: Sequence[str]) -> tuple[Config, argparse.Namespace]:
    """Return the settings of all jobs; the launcher sets those of each later."""
    config, options = parsers.read_settings(parser, argv, own=("jobs", "sync_every"))
    # --num-syncs sets sync_every; without it, other settings of a sync are a mistake.
    if options.num_syncs is None:
        config, options = parsers.read_settings(parser, argv, own=("jobs",))
    return config, options


def choose_warmstart_steps(
    options: argparse.Namespace, previous: LauncherState | None, config: Config
) -> int:
    """Return the steps of the run that all jobs start from."""
    total_steps = config.training.max_steps
    steps = options.warmstart_steps
    if steps is None and previous is not None:
        steps = previous.immutable.warmstart_steps
    # A pretrained run is a common start already.
    if steps is None:
        steps = 0 if config.training.init_from is not None else total_steps // 10
    if steps >= total_steps:
        given = f"--warmstart-steps {steps} was given, but --max-steps is {total_steps}"
        raise ConfigError(f"{given}, which includes the warm start. Give fewer.")
    return steps


def choose_sync_every(options: argparse.Namespace, config: Config, warmstart_steps: int) -> int:
    """Return the steps between two syncs; 0 if the jobs merge at the end only."""
    sync_every = config.local_sgd.sync_every
    if options.num_syncs is None:
        return sync_every
    if sync_every:
        given = f"--num-syncs {options.num_syncs} and sync_every {sync_every}"
        raise ConfigError(f"{given} were both given. Leave out one of them.")
    steps = sync_interval(config.training.max_steps, warmstart_steps, options.num_syncs)
    log.info("syncs          every %d steps", steps)
    return steps


def read_job_file(parser: CommandParser, argv: Sequence[str], shared: Config, file: Path) -> Config:
    """Return the settings of a job in its own file."""
    settings, _ = read_settings(parser, [*argv, "--config", str(file)])
    check_launcher_settings(settings)
    check_job_settings(shared, settings, file)
    log.info("%-14s has its own settings: %s", file.stem.rpartition("_")[2], file)
    return settings
