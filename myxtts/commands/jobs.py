"""`myxtts jobs`: train one model as independent jobs, one on each GPU, and merge them (local SGD).

Exit codes: 0 done; 1 the warm start or the merge failed, or the merged model is worse than the best
job, lacks a job or lacks updates of a job that missed syncs; 2 a mistake in the settings; 130 and
143 stopped after checkpoints (the same command with --resume continues).
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from myxtts.commands.parser import CommandParser, bounded, read_settings, settings_parser
from myxtts.config.schema import Config
from myxtts.distributed.processes import visible_gpus
from myxtts.errors import ConfigError
from myxtts.local_sgd.job_settings import check_job_settings, check_launcher_settings, sync_interval
from myxtts.local_sgd.launcher import JobSpec, JobsSpec, job_devices, previous_state, train_jobs
from myxtts.local_sgd.status import Display, LauncherState, status_report, stop_launcher
from myxtts.placement.routes import hidden_gpus_warning
from myxtts.training.runs import with_inherited_settings

NAME = "jobs"
HELP = "Train independent jobs, one on each GPU, and merge their weights (local SGD)."
TRAINER = (sys.executable, "-u", "-m", "myxtts", "train")
MERGER = (sys.executable, "-u", "-m", "myxtts", "merge")
# sync_every is checked against --jobs and --sync-dir, which are known later.
NO_SYNC = ("--sync-every", "0")
SYNC_SETTINGS = ("sync_every",)

log = logging.getLogger("myxtts.local_sgd")


def make_parser(prog: str = f"myxtts {NAME}") -> CommandParser:
    parser = settings_parser(
        prog,
        f"{HELP} A file FILE_gpu0.yaml next to --config FILE.yaml holds the settings of the job on"
        " GPU 0; it may list FILE under `defaults`.",
        resuming="`--resume` needs the flags of the first command again, except --gpus.",
    )
    count = bounded(int, 0)
    parser.add_argument("--gpus", metavar="N", type=count, nargs="+", help="GPUs, one for each job")
    parser.add_argument(
        "--warmstart-steps",
        metavar="N",
        type=count,
        help=(
            "steps of one run before the jobs start (default: a tenth of max_steps, or 0 with"
            " --init-from)"
        ),
    )
    parser.add_argument(
        "--num-syncs",
        metavar="N",
        type=bounded(int, 1),
        help="number of syncs between the jobs; sets --sync-every",
    )
    parser.add_argument(
        "--max-restarts",
        metavar="N",
        type=count,
        default=2,
        help="maximum number of restarts of a failed job (default 2)",
    )
    parser.add_argument(
        "--table-every",
        metavar="X",
        type=bounded(float, 0.1),
        default=30.0,
        help="seconds between two progress tables if the output is not a terminal (default 30)",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--status", action="store_true", help="print the progress of the jobs of --run and exit"
    )
    group.add_argument(
        "--stop", action="store_true", help="stop the jobs of --run after they write checkpoints"
    )
    return parser


def main(
    argv: Sequence[str],
    prog: str = f"myxtts {NAME}",
    trainer: Sequence[str] = TRAINER,
    merger: Sequence[str] = MERGER,
) -> int:
    parser = make_parser(prog)
    config, options = read_settings(parser, [*argv, *NO_SYNC], own=SYNC_SETTINGS)
    folder = Path(config.run.runs_dir) / config.run.run
    if options.status:
        print(status_report(folder))
        return 0
    if options.stop:
        print(stop_launcher(folder))
        return 0
    if "TF_CONFIG" in os.environ:
        raise ConfigError(
            "TF_CONFIG is set, which makes each run one of several workers. Unset it: jobs are"
            " independent."
        )
    check_launcher_settings(config)
    previous = previous_state(folder, config.run.resume)
    total_steps = config.training.max_steps
    if previous is not None and previous.total_steps != total_steps:
        log.warning("--max-steps is %d; the jobs began with %d", total_steps, previous.total_steps)
    gpus = options.gpus
    if gpus is None and previous is not None:
        gpus = previous.immutable.gpus
    if gpus is None:
        raise ConfigError(
            "no GPUs were named. Give one for each job with --gpus, such as --gpus 0 1."
        )
    warn_of_hidden_gpus(config.placement.simulate_gpus)
    resumed = config.run.run if options.gpus is None else None
    devices = job_devices(gpus, config.placement.simulate_gpus, resumed)
    warmstart_steps = choose_warmstart_steps(options, previous, config)
    jobs = []
    for gpu, device in zip(gpus, devices, strict=True):
        own_config = read_job_file(parser, argv, config, f"gpu{gpu}")
        jobs.append(JobSpec(f"gpu{gpu}", with_inherited_settings(own_config), device))
    spec = JobsSpec(
        folder=folder,
        config=with_inherited_settings(config),
        jobs=tuple(jobs),
        gpus=tuple(gpus),
        warmstart_steps=warmstart_steps,
        sync_every=choose_sync_every(parser, argv, options, config, warmstart_steps),
        max_restarts=options.max_restarts,
        trainer=tuple(trainer),
        merger=tuple(merger),
    )
    return train_jobs(spec, Display(options.table_every))


def warn_of_hidden_gpus(simulated: int) -> None:
    """Warn if jobs on simulated GPUs leave real ones idle; their own processes see none."""
    if simulated and (visible := len(visible_gpus())):
        log.warning("%s", hidden_gpus_warning(simulated, visible))


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
        raise ConfigError(
            f"--warmstart-steps {steps} was given, but the jobs have --max-steps {total_steps},"
            " which includes the warm start. Give fewer, or more --max-steps."
        )
    return steps


def choose_sync_every(
    parser: CommandParser,
    argv: Sequence[str],
    options: argparse.Namespace,
    config: Config,
    warmstart_steps: int,
) -> int:
    """Return the steps between two syncs; 0 if the jobs merge at the end only."""
    if options.num_syncs is None:
        return read_sync_every(parser, argv, config)
    sync_every = read_sync_every(parser, argv, config, SYNC_SETTINGS)
    if sync_every:
        raise ConfigError(
            f"--num-syncs {options.num_syncs} and sync_every {sync_every} were both given. Leave"
            " out one of them."
        )
    steps = sync_interval(config.training.max_steps, warmstart_steps, options.num_syncs)
    log.info("syncs          every %d steps", steps)
    return steps


def read_sync_every(
    parser: CommandParser, argv: Sequence[str], config: Config, own: Sequence[str] = ()
) -> int:
    """Return the setting, which needs several jobs and a folder: the launcher sets them later.

    Args:
        own: further settings that are set later.
    """
    flags = ["--jobs", "2"]
    names = {"jobs", "job", *own}
    if not config.local_sgd.sync_dir:
        flags += ["--sync-dir", "sync"]
        names.add("sync_dir")
    return read_settings(parser, [*argv, *flags], own=names)[0].local_sgd.sync_every


def read_job_file(parser: CommandParser, argv: Sequence[str], config: Config, name: str) -> Config:
    """Return the settings of the job's own file, or `config` if there is none."""
    config_parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    config_parser.add_argument("--config", type=Path)
    file = config_parser.parse_known_args(argv)[0].config
    job_file = file and file.with_name(f"{file.stem}_{name}{file.suffix}")
    if job_file is None or not job_file.is_file():
        return config
    job_argv = [*argv, "--config", str(job_file)]
    settings, _ = read_settings(parser, [*job_argv, *NO_SYNC], own=SYNC_SETTINGS)
    check_launcher_settings(settings)
    check_job_settings(config, settings, job_file)
    # --num-syncs may set sync_every later, so a folder or a timeout without it is no mistake here.
    own = ("sync_dir", *SYNC_SETTINGS)
    common_period = read_sync_every(parser, argv, config, own)
    own_period = read_sync_every(parser, job_argv, config, own)
    if common_period != own_period:
        raise ConfigError(
            f"{job_file} sets sync_every to {own_period} for one job, but the others have"
            f" {common_period}. "
            "Set it in the file of all jobs, or with a flag."
        )
    log.info("%-14s has its own settings: %s", name, job_file)
    return settings
