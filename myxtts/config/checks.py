"""Rules that involve several settings; the schema bounds each alone, and says what each needs.

A setting without what it needs is inactive. To give it is an error, unless a flag replaced what a
setting of a file needs, or an earlier version wrote the config.yaml: then it gets its default.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from myxtts.base.errors import ConfigError
from myxtts.config.flags import SETTINGS, Setting, values_of, with_values
from myxtts.config.schema import Config, RunConfig
from myxtts.devicefeed.errors import PlacementError


def check_settings(config: Config, own: Collection[str] = ()) -> None:
    """Raise ConfigError for contradictions; `own` settings are set later and do not count."""
    for contradiction in _contradictions(config, own):
        raise ConfigError(contradiction)


def _contradictions(config: Config, own: Collection[str]) -> Iterator[str]:
    data, training, augmentation = config.data, config.training, config.augmentation
    if data.min_seconds >= data.max_seconds:
        yield f"min_seconds {data.min_seconds:g} must be below max_seconds {data.max_seconds:g}."
    lowest_db, highest_db = augmentation.noise_min_snr_db, augmentation.noise_max_snr_db
    if lowest_db > highest_db:
        yield f"noise_min_snr_db {lowest_db:g} must not be above noise_max_snr_db {highest_db:g}."
    # 0 is "no limit" for each of the two.
    if training.max_steps == 0 and training.epochs == 0:
        yield "max_steps and epochs are both 0, so the run would never end. Set one of them."
    # XLA compiles once per shape and for one device, so that each new length of a text would be
    # compiled again.
    if training.compile == "xla" and not data.enable_static_shapes:
        yield "compile is 'xla', but XLA needs known shapes. Add --enable-static-shapes."
    if training.compile == "xla" and training.alignment_search == "host":
        yield "compile is 'xla', but alignment_search is 'host'. Leave out one of the two."
    if data.cache_dataset and not config.run.lock:
        yield "cache_dataset needs a file system with locks. Leave out one of it and --no-lock."
    yield from _selection_contradictions(config.run, config.model.task)
    sync = config.local_sgd
    # Epochs of different shards have different steps, and the jobs sync after the same steps.
    if sync.sync_every and training.epochs:
        yield "epochs and sync_every are set, but jobs sync after the same steps. Give --epochs 0."
    is_alone = sync.sync_dir is None or sync.jobs < 2
    if sync.sync_every and is_alone and "jobs" not in own:
        yield "sync_every needs several jobs and a shared folder. Give --jobs and --sync-dir."
    if (sync.sync_quorum or 0) > sync.jobs:
        yield f"sync_quorum is {sync.sync_quorum} of {sync.jobs} jobs. Give a smaller one."
    if sync.job >= sync.jobs:
        found = f"job is {sync.job}, but the {sync.jobs} jobs are numbered from 0"
        yield f"{found}. Give a smaller --job, or more --jobs."


def _selection_contradictions(run: RunConfig, task: str) -> Iterator[str]:
    chosen = f"--select-by {run.select_by}"
    if run.select_by == "loss":
        return
    if task == "vocoder" or (run.select_by, task) == ("dnsmos", "asr"):
        yield f"{chosen} was given, but an evaluation of --task {task} lacks it. Leave it out."
    if not run.evaluate_every:
        yield f"{chosen} needs the scores of evaluations, but evaluate_every is 0. Set it."
    if (run.select_by, task) == ("cer", "tts") and run.evaluate_asr is None:
        yield f"{chosen} needs a recogniser of the speech. Name its run with --evaluate-asr."


def check_worker_count(config: Config, workers: int) -> None:
    """Raise ConfigError for settings of a single worker in a run that is one of several workers."""
    if config.training.patience:
        raise ConfigError(
            f"--patience was given to {workers} workers, which would not stop together. Leave it"
            " out; the best checkpoint is kept."
        )
    if config.local_sgd.sync_every:
        reason = "which synchronize their gradients at each step. Leave it out"
        raise ConfigError(f"--sync-every was given to {workers} workers, {reason}.")


def check_shares(config: Config, replicas: int, has_workers: bool) -> None:
    """Raise ConfigError if --batch-shares does not fit the replicas of all workers."""
    shares = config.data.batch_shares
    if shares == "auto" and (has_workers or replicas == 1):
        found = "several workers" if has_workers else "a single replica"
        raise ConfigError(
            f"--batch-shares auto was given to {found}, but it shares steps between the GPUs of one"
            " machine. Name at least two with --model-gpus, or give the share of each worker."
        )
    if shares and shares != "auto" and len(shares) != replicas:
        raise ConfigError(
            f"--batch-shares needs one number for each replica ({replicas}), but has {len(shares)}."
            " Give one for each GPU that trains, on all workers, or leave it out."
        )


def check_xla(config: Config, replicas: int, placement: str, supports_xla: bool) -> None:
    """Raise ConfigError or PlacementError if XLA cannot compile the training step."""
    if config.training.compile != "xla":
        return
    if not supports_xla:
        task = f"the task {config.model.task} cannot be compiled by XLA"
        raise ConfigError(f"--compile xla was given, but {task}. Leave out --compile.")
    if replicas > 1:
        raise PlacementError(
            f"--compile xla was given with {replicas} replicas ({placement}), but XLA compiles for"
            " one device. Leave out --compile, or give a single GPU with --model-gpus."
        )


def inactive_settings(values: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield the settings that have no effect with the values of all settings, by name."""
    return (setting for setting in SETTINGS.values() if not setting.needs.is_met(values))


def reset_inactive(config: Config) -> Config:
    """Return the settings to compare or to write; inactive ones have their defaults."""
    defaults = {setting.name: setting.default for setting in inactive_settings(values_of(config))}
    return with_values(config, defaults)
