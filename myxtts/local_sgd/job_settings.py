"""From the settings of a user to those of the common start and of each job. No TensorFlow."""

from itertools import count
from pathlib import Path
from typing import Any

from myxtts.config.schema import Config, LocalSGDConfig, PlacementConfig, Section
from myxtts.errors import ConfigError, PlacementError
from myxtts.local_sgd.launcher_state import Shards
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.select_checkpoint import INHERITED, select_checkpoint

# What one model out of all jobs needs them to have in common, whatever their own files say.
COMMON = {
    "data": ("train_data", "val_data", "audio_root", "validation_fraction", "language", "text_frontend"),
    "model": ("task", "model_size"),
    "asr": ("encoder", "subsampling"),
    "training": ("max_steps", "epochs", "precision", "ema_decay", "seed", "init_from", "freeze"),
    "run": ("run", "runs_dir", "resume"),
    "local_sgd": tuple(LocalSGDConfig.model_fields),
}
# What the parts of the corpus depend on.
OF_THE_SPLIT = (
    *("train_data", "val_data", "audio_root", "validation_fraction", "language"),
    *("text_frontend", "min_seconds", "max_seconds", "seed"),
)


def changed(config: Config, **sections: dict[str, Any] | Section) -> Config:
    """Settings with other values: a section's by name, or a whole section."""
    update = {
        section: values if isinstance(values, Section) else getattr(config, section).model_copy(update=values)
        for section, values in sections.items()
    }
    return config.model_copy(update=update)


def check_settings(config: Config) -> None:
    """Raises ConfigError or PlacementError where settings are the launcher's own, or do not go with several jobs."""
    placement, training, local_sgd = config.placement, config.training, config.local_sgd
    given = [name for name in ("data_gpu", "model_gpu", "data_gpu_memory") if getattr(placement, name) is not None]
    given += ["model_gpus"] * bool(placement.model_gpus) + ["placement auto"] * (placement.placement == "auto")
    if given:
        raise PlacementError(
            f"{_flag(given[0])} was asked for, but each job has one GPU of its own, which makes its batches and trains "
            "on them. Leave it out (of the --config file, too), and name the GPUs by --gpus."
        )
    if training.epochs or not training.max_steps:
        raise ConfigError(
            f"the length of the jobs was given as {training.epochs} epochs, but they have parts of different length "
            "and take the same number of steps. Give --max-steps, and leave out --epochs."
        )
    if training.stop_at_step is not None:
        raise ConfigError("--stop-at-step was given, but it is what --warmstart-steps sets. Give that.")
    if local_sgd.jobs > 1 or local_sgd.job:
        raise ConfigError("--jobs and --job were given, but the jobs are numbered by --gpus. Leave them out.")


def check_job_settings(common: Config, own: Config, file: Path) -> None:
    """Raises ConfigError where the file of one job has another value of what all jobs have in common."""
    for section, names in COMMON.items():
        for name in names:
            shared, found = (getattr(getattr(config, section), name) for config in (common, own))
            if shared != found:
                raise ConfigError(
                    f"{file} makes {name} {found} for one job, but all have to have the same ({shared} by the others). "
                    "Give it in the file of all, or as a flag."
                )


def with_base(config: Config) -> Config:
    """The settings with those that the weights of --init-from fix, where the user named none.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    if config.training.init_from is None:
        return config
    settings = read_metadata(select_checkpoint(Path(config.training.init_from)))["settings"]
    return changed(
        config,
        **{
            section: {name: settings[section][name] for name in names if name not in _named(config, section)}
            for section, names in INHERITED.items()
        },
    )


def _named(config: Config, section: str) -> set[str]:
    return getattr(config, section).model_fields_set


def round_steps(total_steps: int, warmstart_steps: int, rounds: int) -> int:
    """Steps of a round, so that jobs merge at most so often.

    They do at each multiple of it and at the last step; so it is a little more than the steps divided by the rounds
    where the common start ends between two multiples.
    """
    shortest = -(-(total_steps - warmstart_steps) // rounds)
    return next(every for every in count(shortest) if -(-total_steps // every) - warmstart_steps // every <= rounds)


def of_start(config: Config, folder: Path, split: Shards, warmstart_steps: int) -> Config:
    return changed(
        config,
        placement=_on_one_device(config),
        data=_data(split, split.train),
        training={"stop_at_step": warmstart_steps},
        run=_run(folder, "start"),
        local_sgd=LocalSGDConfig(),
    )


def of_job(config: Config, folder: Path, split: Shards, name: str, number: int, merges: dict[str, Any]) -> Config:
    """Settings of one job.

    Args:
        config: as the user gave them, for this job.
        merges: `jobs`, `sync_every` and `sync_dir`.
    """
    return changed(
        config,
        placement=_on_one_device(config),
        data=_data(split, split.parts[number]),
        training={"seed": config.training.seed + number},
        run=_run(folder, name),
        local_sgd=merges | {"job": number},
    )


def _on_one_device(config: Config) -> PlacementConfig | dict[str, Any]:
    """Shares of the CPU are the CPU to their job, and have no limits of memory."""
    return PlacementConfig() if config.placement.simulate_gpus else {}


def _data(split: Shards, train: str) -> dict[str, Any]:
    return {"train_data": train, "val_data": split.held_out, "audio_root": split.audio_root}


def _run(folder: Path, name: str) -> dict[str, Any]:
    return {"run": name, "runs_dir": str(folder), "resume": False}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
