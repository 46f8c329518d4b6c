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
from myxtts.config.schema import (
    AugmentationConfig,
    Config,
    DataConfig,
    LocalSGDConfig,
    TrainingConfig,
)
from myxtts.errors import ConfigError, PlacementError


def check_settings(config: Config) -> None:
    """Check all rules that depend on the settings alone; every Config that is loaded has passed.

    Raises:
        ConfigError: settings contradict each other.
    """
    _check_data(config.data)
    _check_augmentation(config.augmentation)
    _check_training(config.training, config.data)
    _check_discriminators(config)
    _check_local_sgd(config.local_sgd, config.training)


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


def _check_data(data: DataConfig) -> None:
    if data.min_seconds >= data.max_seconds:
        raise ConfigError(
            f"min_seconds ({data.min_seconds:g}) must be below max_seconds ({data.max_seconds:g})."
        )
    if data.val_data is not None and data.val_data == data.train_data:
        raise ConfigError(
            f"--train-data and --val-data are both {data.val_data}, so validation would measure"
            " what was trained on. Leave out --val-data to hold out some utterances, or give other"
            " ones."
        )
    if data.data_service is None:
        return
    if data.cache_dataset or not data.use_tf_native_loading:
        flag = "--cache-dataset" if data.cache_dataset else "--no-use-tf-native-loading"
        raise ConfigError(
            f"--data-service and {flag} were both given, but the workers of the service read the"
            f" files themselves, by TensorFlow's own operations. Leave out {flag} or"
            " --data-service."
        )


def _check_augmentation(augmentation: AugmentationConfig) -> None:
    if augmentation.noise_min_snr_db > augmentation.noise_max_snr_db:
        raise ConfigError(
            f"noise_min_snr_db ({augmentation.noise_min_snr_db:g}) must not be above"
            f" noise_max_snr_db ({augmentation.noise_max_snr_db:g})."
        )


def _check_training(training: TrainingConfig, data: DataConfig) -> None:
    if training.max_steps == 0 and training.epochs == 0:
        raise ConfigError(
            "max_steps and epochs are both 0, so the run would never end. Set --max-steps or"
            " --epochs."
        )
    if training.compile == "xla" and not data.enable_static_shapes:
        raise ConfigError(
            "compile is 'xla', but XLA needs known shapes. Add --enable-static-shapes or --compile"
            " off."
        )
    if training.compile == "xla" and training.alignment_search == "host":
        raise ConfigError(
            "compile is 'xla' and alignment_search is 'host', but a step that XLA compiles runs on"
            " one device. Leave out --alignment-search or --compile."
        )


def _check_discriminators(config: Config) -> None:
    if config.vocoder.discriminators and config.training.init_from is None:
        raise ConfigError(
            "--discriminators was given without a trained vocoder: against random weights,"
            " discriminators teach a vocoder to make noise. Train one with --config"
            " configs/vocoder.yaml, then name its run with --init-from."
        )


def _check_local_sgd(local_sgd: LocalSGDConfig, training: TrainingConfig) -> None:
    if local_sgd.sync_every and training.epochs:
        raise ConfigError(
            f"epochs is {training.epochs} and sync_every {local_sgd.sync_every}, but epochs of"
            " different shards have different steps, and the jobs sync after the same steps. Give"
            " --max-steps and --epochs 0."
        )
    if local_sgd.sync_every and (local_sgd.sync_dir is None or local_sgd.jobs < 2):
        raise ConfigError(
            "sync_every needs several jobs and a shared folder. Give --jobs and --sync-dir."
        )
    if local_sgd.job >= local_sgd.jobs:
        raise ConfigError(
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
        return f"{flag_of(name)} is {'on' if value else 'off'}"
    return f"{flag_of(name)} is {value or 0}"


def reset_inactive(config: Config) -> Config:
    """Return the settings to compare or to write, with the default of each that has no effect."""
    defaults = {setting.name: setting.default for setting in inactive_settings(values_of(config))}
    return with_values(config, defaults)
