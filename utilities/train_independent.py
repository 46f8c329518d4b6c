"""Train one model as independent jobs, one on each GPU, that never wait for each other, and merge them.

python utilities/train_independent.py --config configs/local_sgd.yaml --gpus 0 1 --run NAME
python utilities/train_independent.py --train-data CORPUS --gpus 0 1 2 --max-steps 20000 --num-syncs 5 --run NAME
python utilities/train_independent.py --run NAME --status
python utilities/train_independent.py --run NAME --stop

Exit codes: 0 done, 1 the merge is worse than the best job or lacks one, 2 a mistake that the message explains, 130 and
143 stopped after checkpoints: the same command with --resume goes on.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from myxtts.commands.cli import bounded, read_settings, report_errors, settings_parser
from myxtts.config.schema import Config
from myxtts.errors import ConfigError
from myxtts.local_sgd.job_settings import check_job_settings, check_settings, round_steps, with_base
from myxtts.local_sgd.jobs import Device, Job, Work, devices_of, existing_record, train_jobs
from myxtts.local_sgd.launcher_state import LauncherState, stop_launcher
from myxtts.local_sgd.progress import Display, status

ROOT = Path(__file__).resolve().parents[1]
PYTHON = (sys.executable, "-u")
TRAINER = (*PYTHON, str(ROOT / "train_main.py"))
MERGER = (*PYTHON, str(ROOT / "utilities" / "merge_checkpoints.py"))
OF_LAUNCHER = ("--sync-every", "0")  # is checked against --jobs and --sync-dir, which are known later

log = logging.getLogger("myxtts.local_sgd")


def make_parser() -> argparse.ArgumentParser:
    parser = settings_parser(
        prog="utilities/train_independent.py",
        description="Train one model as independent jobs, one on each GPU, and merge them. FILE_gpu0.yaml beside "
        "--config FILE.yaml, if there is one, holds the settings of the job on GPU 0; it may build on FILE.",
    )
    count = bounded(int, 0)
    parser.add_argument("--gpus", metavar="N", type=count, nargs="+", help="GPUs, one for each job")
    parser.add_argument(
        "--warmstart-steps",
        metavar="N",
        type=count,
        help="steps that one run takes before the jobs part (default: a tenth of max_steps, or none with --init-from)",
    )
    parser.add_argument(
        "--num-syncs", metavar="N", type=bounded(int, 1), help="merge so often on the way; sets --sync-every"
    )
    parser.add_argument(
        "--max-restarts",
        metavar="N",
        type=count,
        default=2,
        help="how often a job that dies is started again (default 2)",
    )
    parser.add_argument(
        "--table-every",
        metavar="X",
        type=bounded(float, 0.1),
        default=30.0,
        help="seconds between two tables where the output is no terminal (default 30)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--status", action="store_true", help="say how far the jobs of --run are, and stop")
    which.add_argument("--stop", action="store_true", help="stop the jobs of --run, after checkpoints")
    return parser


def main(
    arguments: Sequence[str] | None = None, trainer: Sequence[str] = TRAINER, merger: Sequence[str] = MERGER
) -> int:
    argv = sys.argv[1:] if arguments is None else arguments
    parser = make_parser()
    config, asked = read_settings(parser, [*argv, *OF_LAUNCHER])
    folder = Path(config.run.runs_dir) / config.run.run
    if asked.status:
        print(status(folder))
        return 0
    if asked.stop:
        print(stop_launcher(folder))
        return 0
    if "TF_CONFIG" in os.environ:
        raise ConfigError("TF_CONFIG is set, which makes each run one of several workers. Unset it: jobs do not talk.")
    check_settings(config)
    before = existing_record(folder, config.run.resume)
    gpus = gpus_of(asked, before)
    warmstart_steps = shared_steps_of(asked, before, config)
    work = Work(
        folder=folder,
        config=with_base(config),
        jobs=tuple(jobs_of(parser, argv, config, gpus, devices_of(gpus, config.placement.simulate_gpus))),
        gpus=gpus,
        warmstart_steps=warmstart_steps,
        sync_every=merge_every_of(parser, argv, asked, config, warmstart_steps, len(gpus)),
        max_restarts=asked.max_restarts,
        trainer=tuple(trainer),
        merger=tuple(merger),
    )
    return train_jobs(work, Display(asked.table_every))


def gpus_of(asked: argparse.Namespace, before: LauncherState | None) -> tuple[int, ...]:
    if asked.gpus is not None:
        return tuple(asked.gpus)
    if before is None:
        raise ConfigError("no GPUs were named. Give one for each job by --gpus, such as --gpus 0 1.")
    return tuple(before.fixed.gpus)


def shared_steps_of(asked: argparse.Namespace, before: LauncherState | None, config: Config) -> int:
    """Steps of the common start."""
    total_steps = config.training.max_steps
    usual = 0 if config.training.init_from is not None else total_steps // 10
    if before is not None:
        usual = before.fixed.warmstart_steps
    steps = usual if asked.warmstart_steps is None else asked.warmstart_steps
    if steps >= total_steps:
        raise ConfigError(
            f"--warmstart-steps {steps} was asked for, but the jobs have --max-steps {total_steps}, the shared "
            "ones among them. Give fewer, or more --max-steps."
        )
    return steps


def merge_every_of(parser, argv, asked: argparse.Namespace, config: Config, warmstart_steps: int, jobs: int) -> int:
    """Steps of a round; 0 where the jobs merge at the end only."""
    of_jobs = ("--jobs", str(jobs), "--sync-dir", config.local_sgd.sync_dir or "rounds")
    sync_every = read_settings(parser, [*argv, *of_jobs])[0].local_sgd.sync_every
    if asked.num_syncs is None:
        return sync_every
    if sync_every:
        raise ConfigError(
            f"--num-syncs {asked.num_syncs} and sync_every {sync_every} were both given. Leave out one of them."
        )
    steps = round_steps(config.training.max_steps, warmstart_steps, asked.num_syncs)
    log.info("rounds         a merge every %d steps", steps)
    return steps


def jobs_of(parser, argv, config: Config, gpus: Sequence[int], devices: Sequence[Device]) -> list[Job]:
    """The jobs, each with the settings of its own file where there is one."""
    return [
        Job(f"gpu{gpu}", with_base(own_settings(parser, argv, config, f"gpu{gpu}")), device)
        for gpu, device in zip(gpus, devices, strict=True)
    ]


def own_settings(parser, argv, config: Config, name: str) -> Config:
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", type=Path)
    file = finder.parse_known_args(argv)[0].config
    own_file = file.with_name(f"{file.stem}_{name}{file.suffix}") if file is not None else None
    if own_file is None or not own_file.is_file():
        return config
    own = read_settings(parser, [*argv, "--config", str(own_file), *OF_LAUNCHER])[0]
    check_settings(own)
    check_job_settings(config, own, own_file)
    log.info("%-14s has settings of its own: %s", name, own_file)
    return own


if __name__ == "__main__":
    sys.exit(report_errors(main))
