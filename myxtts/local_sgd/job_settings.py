"""Settings of the warm start and of each job, derived from the user's. No TensorFlow."""

from itertools import count
from pathlib import Path
from typing import Any

from myxtts.config.flags import marked
from myxtts.config.schema import IN_ALL_JOBS, Config, LocalSGDConfig, PlacementConfig, Section
from myxtts.errors import ConfigError, PlacementError
from myxtts.local_sgd.shards import CorpusShards
from myxtts.placement.routes import flags_of_gpus

# Name of the run of the warm start.
WARMSTART = "warmstart"


def updated(config: Config, **sections: dict[str, Any] | Section) -> Config:
    """Return settings with some values of a section, or a whole section, replaced."""
    update: dict[str, Any] = {}
    for section, values in sections.items():
        if isinstance(values, Section):
            update[section] = values
        else:
            update[section] = getattr(config, section).model_copy(update=values)
    return config.model_copy(update=update)


def check_launcher_settings(config: Config) -> None:
    """Raise ConfigError or PlacementError for settings that several jobs cannot have."""
    placement = config.placement
    training = config.training
    local_sgd = config.local_sgd
    given = list(flags_of_gpus(placement))
    if placement.placement == "auto":
        given.append("--placement auto")
    if given:
        raise PlacementError(
            f"{given[0]} was given, but each job has a single GPU, which makes its batches and"
            " trains on them. Leave it out (also of the --config file), and name the GPUs with"
            " --gpus."
        )
    if training.epochs or not training.max_steps:
        raise ConfigError(
            f"--epochs {training.epochs} was given, but the shards of the jobs differ in length,"
            " and all jobs take the same number of steps. Give --max-steps, and leave out"
            " --epochs."
        )
    if training.stop_at_step is not None:
        raise ConfigError(
            "--stop-at-step was given, but the launcher sets it. Give --warmstart-steps instead."
        )
    if local_sgd.jobs > 1 or local_sgd.job:
        raise ConfigError("--jobs or --job was given, but --gpus numbers the jobs. Leave them out.")


def check_job_settings(shared: Config, job: Config, file: Path) -> None:
    """Raise ConfigError if the file of one job changes a setting that all jobs must share."""
    for setting in marked(IN_ALL_JOBS):
        expected = setting.of(shared)
        value = setting.of(job)
        if expected != value:
            raise ConfigError(
                f"{file} sets {setting.name} to {value} for one job, but all jobs must have the"
                f" same value (the others have {expected}). Set it in the file of all jobs, or with"
                " a flag."
            )


def sync_interval(total_steps: int, warmstart_steps: int, num_syncs: int) -> int:
    """Return the fewest steps between two syncs for which there are at most `num_syncs`.

    Jobs synchronize at each multiple of the interval and at the last step. So the interval is a
    little longer than the steps divided by the syncs if the warm start ends between two multiples.
    """
    shortest = -(-(total_steps - warmstart_steps) // num_syncs)
    return next(
        every
        for every in count(shortest)
        if -(-total_steps // every) - warmstart_steps // every <= num_syncs
    )


def warmstart_config(
    config: Config, folder: Path, shards: CorpusShards, warmstart_steps: int
) -> Config:
    """Return the settings of the warm start, which trains on the whole corpus."""
    return updated(
        config,
        placement=_single_device(config),
        data=_data(shards, shards.train),
        training={"stop_at_step": warmstart_steps},
        run=_run(folder, WARMSTART),
        local_sgd=LocalSGDConfig(),
    )


def job_config(
    config: Config,
    folder: Path,
    shards: CorpusShards,
    name: str,
    index: int,
    local_sgd: dict[str, Any],
) -> Config:
    """Return the settings of one job.

    Args:
        config: of this job, before the launcher adds its own settings.
        local_sgd: `jobs`, `sync_every` and `sync_dir`.
    """
    return updated(
        config,
        placement=_single_device(config),
        data=_data(shards, shards.shards[index]),
        training={"seed": config.training.seed + index},
        run=_run(folder, name),
        local_sgd=local_sgd | {"job": index},
    )


def _single_device(config: Config) -> PlacementConfig | dict[str, Any]:
    """Return the default placement if GPUs are simulated: a job sees its cores as the whole CPU."""
    if not config.placement.simulate_gpus:
        return {}
    return PlacementConfig(
        intra_op_threads=config.placement.intra_op_threads,
        inter_op_threads=config.placement.inter_op_threads,
    )


def _data(shards: CorpusShards, train: Path) -> dict[str, Any]:
    held_out = None if shards.held_out is None else str(shards.held_out)
    return {"train_data": str(train), "val_data": held_out, "audio_root": str(shards.audio_root)}


def _run(folder: Path, name: str) -> dict[str, Any]:
    return {"run": name, "runs_dir": str(folder), "resume": False}
