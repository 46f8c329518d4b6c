"""Settings that a run has from another one: its own checkpoint, a pretrained run, its teacher.

What comes in are the settings that the user gave, and the record of the other run. A setting that
the user gave must be equal to the recorded one, and a setting that was left out takes its value.
Which settings these are is said by their marks in `config.schema`. All this happens in the main
thread, before a corpus is read.
"""

from collections.abc import Sequence
from pathlib import Path

from myxtts.audio.format import audio_format
from myxtts.base.errors import CheckpointError, ConfigError
from myxtts.base.published import local_run
from myxtts.checkpoints.files import Checkpoint, checkpoint_of
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.checks import inactive_settings, reset_inactive
from myxtts.config.flags import SETTINGS, Setting, marked, values_of, with_values
from myxtts.config.schema import FIXED, FROM_TEACHER, INHERITED, Config

OF_FRONTEND = "text_frontend", "text_normaliser"


def open_teacher(path: str | None, resumed: TrainedRun | None) -> TrainedRun | None:
    """Open the teacher that the settings name, if they name one; raise CheckpointError if unfit.

    A run that resumes takes the same checkpoint as before, even if there is a better one by now.
    """
    recorded = resumed.record.teacher if resumed else None
    if resumed and (recorded is None) != (path is None):
        had = "none"
        if recorded:
            had = f"--teacher {recorded.run}"
        raise CheckpointError(
            f"--teacher {path} was given, but {resumed.checkpoint.path} was trained with {had}."
            " Take all settings from the run with --config, or start another one with --run."
        )
    if path is None:
        return None
    name = None
    if recorded is not None:
        checkpoint = checkpoint_of(Path(path) / "checkpoints", recorded.step)
        if checkpoint.exists():
            name = checkpoint.name
    teacher = TrainedRun.open(Path(path), name)
    if resumed and recorded and teacher.checkpoint.weights_digest != recorded.weights:
        raise CheckpointError(
            f"{teacher.checkpoint.path} has other weights than the teacher of"
            f" {resumed.checkpoint.path}, {recorded.run} step {recorded.step}. Restore that"
            " teacher, or start another run with --run."
        )
    teacher.check_task("tts")
    if teacher.record.audio_format != audio_format(teacher.record.settings.data.sample_rate):
        raise CheckpointError(
            f"--teacher {path} was given, but {teacher.checkpoint.path} was trained on mels of"
            " another format than this version makes. Train it again with this version."
        )
    return teacher


def inherit_settings(config: Config, source: TrainedRun) -> Config:
    """Return the settings with those that a pretrained or resumed run fixes; raise ConfigError."""
    fixed = reset_inactive(source.record.settings)
    advice = "give another --init-from, or start another run with --run"
    origin = f"the run starts from {source.checkpoint.path}, which"
    # A vocoder takes these settings from its present teacher, which may differ from the source's.
    is_taught = fixed.model.task == "vocoder" and config.teacher.teacher is not None
    inherited = [
        setting
        for setting in marked(INHERITED)
        if not (is_taught and FROM_TEACHER in setting.marks)
    ]
    # Symbols keep their weights by name, so another front end, if it is given, may make them.
    frontend = config.data.text_frontend
    if "text_frontend" in config.data.model_fields_set and frontend != fixed.data.text_frontend:
        inherited = [setting for setting in inherited if setting.name not in OF_FRONTEND]
    config = _with_fixed(config, fixed, inherited, origin, advice)
    if config.model.task == "vocoder" and fixed.teacher.teacher and not config.teacher.teacher:
        raise ConfigError(
            f"no --teacher was given, but {origin} learned from the mels of the voice"
            f" {fixed.teacher.teacher}. Give --teacher with this or another voice, or {advice}."
        )
    return config


def apply_teacher_settings(config: Config, teacher: TrainedRun) -> Config:
    """Return the configuration with the settings that a teacher fixes; raise ConfigError."""
    settings = teacher.record.settings
    origin = f"the teacher {teacher.path}"
    return _with_fixed(config, settings, marked(FROM_TEACHER), origin, "give another --teacher")


def keep_normaliser(config: Config, resumed: TrainedRun) -> Config:
    """Return the settings with the normaliser of a run, whose config.yaml may not name it."""
    saved, setting = resumed.record.settings, SETTINGS["text_normaliser"]
    origin = f"{resumed.checkpoint.path}, which the run resumes,"
    return _with_fixed(config, saved, [setting], origin, "start another run with --run")


def with_inherited_settings(config: Config) -> Config:
    """Return the settings with all that --teacher and --init-from fix, as a new run has it."""
    if config.teacher.teacher is not None:
        config = apply_teacher_settings(config, TrainedRun.open(Path(config.teacher.teacher)))
    if config.training.init_from is not None:
        config = inherit_settings(config, TrainedRun.open(local_run(config.training.init_from)))
    return config


def _with_fixed(
    config: Config, fixed: Config, settings: Sequence[Setting], origin: str, advice: str
) -> Config:
    """Return the configuration with some settings of another one."""
    for setting in settings:
        given, value = setting.of(config), setting.of(fixed)
        is_given = setting.name in getattr(config, setting.section).model_fields_set
        if is_given and given != value:
            raise ConfigError(
                f"{setting.name} {given} was given, but {origin} has {value}. Leave"
                f" {setting.name} out, or {advice}."
            )
    return with_values(config, {setting.name: setting.of(fixed) for setting in settings})


def check_same_settings(checkpoint: Checkpoint, requested: Config) -> None:
    """Raise CheckpointError if a run is to resume with another value of an active FIXED setting."""
    saved = checkpoint.record.settings
    useless = set()
    for config in (saved, requested):
        useless |= {setting.name for setting in inactive_settings(values_of(config))}
    for setting in marked(FIXED):
        before, now = setting.of(saved), setting.of(requested)
        # The only list among them, `freeze`, has no order.
        if isinstance(before, tuple) and isinstance(now, tuple):
            before, now = (" ".join(sorted(names)) or "nothing" for names in (before, now))
        if setting.name not in useless and before != now:
            raise CheckpointError(
                f"{setting.section}.{setting.name} is {now}, but {checkpoint.path} was written with"
                f" {before}, and it cannot change within a run. Set it to {before}, or take all"
                f" settings from the run with --config {checkpoint.path.parents[1] / 'config.yaml'}"
                ", or start another run with --run."
            )
