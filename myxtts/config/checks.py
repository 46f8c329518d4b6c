"""Rules that involve several settings; the schema bounds each setting alone, and says which others
it needs.

A setting without what it needs is inactive. To give it is an error, with two exceptions: a flag may
replace what makes a setting of a file active, and the config.yaml of a run may have been written by
a version that did not know what a setting needs. Both are reset to their defaults.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from myxtts.config.flags import SETTINGS, Setting, values_of, with_values
from myxtts.config.needs import flag_of
from myxtts.config.schema import Config
from myxtts.errors import ConfigError, PlacementError


def check_settings(config: Config) -> None:
    """Check all rules that depend on the settings alone; every Config that is loaded has passed.

    Raises:
        ConfigError: settings contradict each other.
    """
    for contradiction in _contradictions(config):
        raise ConfigError(contradiction)


def check_worker_count(config: Config, workers: int) -> None:
    """Check the settings of a run that is one of several distributed workers.

    Raises:
        ConfigError: the settings are meant for a single worker.
    """
    if config.local_sgd.sync_every:
        raise ConfigError(
            f"--sync-every was given to {workers} workers, which synchronize their gradients at"
            " each step. Leave out one of the two."
        )


def check_xla(config: Config, replicas: int, placement: str, supports_xla: bool) -> None:
    """Check whether XLA can compile the training step.

    Args:
        replicas: number of replicas over all workers.
        placement: name of the placement, for the message.
        supports_xla: whether XLA compiles the step of the task.

    Raises:
        PlacementError: there are several replicas.
        ConfigError: the task does not support XLA.
    """
    if config.training.compile != "xla":
        return
    if not supports_xla:
        raise ConfigError(
            f"--compile xla was given, but the task {config.model.task} cannot be compiled by XLA."
            " Leave out --compile."
        )
    if replicas > 1:
        raise PlacementError(
            f"--compile xla was given with {replicas} replicas ({placement}), but XLA compiles for"
            " one device. Leave out --compile, or give a single GPU with --model-gpus."
        )


def _contradictions(config: Config) -> Iterator[str]:
    """Yield a message for each rule that the settings break."""
    data = config.data
    if data.min_seconds >= data.max_seconds:
        yield f"min_seconds {data.min_seconds:g} must be below max_seconds {data.max_seconds:g}."
    if data.val_data is not None and data.val_data == data.train_data:
        yield (
            f"--train-data and --val-data are both {data.val_data}, so validation would measure"
            " what was trained on. Leave out --val-data to hold out some utterances."
        )
    lowest_db = config.augmentation.noise_min_snr_db
    highest_db = config.augmentation.noise_max_snr_db
    if lowest_db > highest_db:
        yield f"noise_min_snr_db {lowest_db:g} must not be above noise_max_snr_db {highest_db:g}."
    # 0 is "no limit" for each of the two.
    training = config.training
    if training.max_steps == 0 and training.epochs == 0:
        yield "max_steps and epochs are both 0, so the run would never end. Set one of them."
    # XLA compiles once per shape, so that each new length of a text would be compiled again.
    if training.compile == "xla" and not data.enable_static_shapes:
        yield (
            "compile is 'xla', but XLA needs known shapes. Add --enable-static-shapes or --compile"
            " off."
        )
    if training.compile == "xla" and training.alignment_search == "host":
        yield (
            "compile is 'xla' and alignment_search is 'host', but a step that XLA compiles runs on"
            " one device. Leave out --alignment-search or --compile."
        )
    # Against random weights, discriminators teach a vocoder to make noise.
    if config.vocoder.discriminators and training.init_from is None:
        yield (
            "--discriminators was given without a trained vocoder. Train one with --config"
            " configs/vocoder.yaml, then name its run with --init-from."
        )
    local_sgd = config.local_sgd
    # Epochs of different shards have different steps, and the jobs sync after the same steps.
    if local_sgd.sync_every and training.epochs:
        yield (
            f"epochs is {training.epochs} and sync_every {local_sgd.sync_every}, but jobs sync"
            " after the same steps. Give --max-steps and --epochs 0."
        )
    if local_sgd.sync_every and (local_sgd.sync_dir is None or local_sgd.jobs < 2):
        yield "sync_every needs several jobs and a shared folder. Give --jobs and --sync-dir."
    if local_sgd.job >= local_sgd.jobs:
        yield (
            f"job is {local_sgd.job}, but the {local_sgd.jobs} jobs are numbered from 0. Give a"
            " smaller --job, or more --jobs."
        )


def inactive_settings(values: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield the settings that have no effect with the values of all settings, by name."""
    return (setting for setting in SETTINGS.values() if not setting.needs.is_met(values))


def inactive_setting_error(
    setting: Setting, where: str, shown_value: str, values: Mapping[str, Any]
) -> str:
    """Return the message about a setting that has no effect.

    Args:
        where: place of the setting: a flag, or a file and line.
        shown_value: the value as messages show it.
        values: of all settings, by name.
    """
    found = " and ".join(_state(name, values[name]) for name in setting.needs.unmet(values))
    return (
        f"{where} is {shown_value}, but it has an effect only {setting.needs.text}, and {found}. "
        "Leave it out, or change what it needs."
    )


def _state(name: str, value: Any) -> str:
    if value is None or value == ():
        return f"{flag_of(name)} is not given"
    if isinstance(value, bool):
        switch = "on" if value else "off"
        return f"{flag_of(name)} is {switch}"
    return f"{flag_of(name)} is {value or 0}"


def reset_inactive(config: Config) -> Config:
    """Return the settings to compare or to write, with the default of each that has no effect."""
    defaults = {setting.name: setting.default for setting in inactive_settings(values_of(config))}
    return with_values(config, defaults)
