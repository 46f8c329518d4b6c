"""Settings that a run takes from the run of its first weights, and from its teacher. No
TensorFlow.
"""

from collections.abc import Mapping
from pathlib import Path

from myxtts.config.effects import without_useless
from myxtts.config.schema import Config
from myxtts.errors import ConfigError
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.select_checkpoint import select_checkpoint, settings_of

Names = Mapping[str, tuple[str, ...]]
"""Names of settings by section."""

INHERITED: Names = {  # settings that give weights and symbols their meaning
    "data": ("text_frontend",),
    "model": ("task", "model_size"),
    "asr": ("encoder", "subsampling"),
}
TAUGHT: Names = {"data": INHERITED["data"]}  # a teacher reads the symbols of the run


def inherit_settings(config: Config, checkpoint: Path) -> Config:
    """Return the configuration with the settings that the weights of a checkpoint fix.

    Args:
        checkpoint: of the pretrained run, or of the run itself, which resumes from it.

    Raises:
        ConfigError: the configuration names another value of such a setting.
    """
    fixed = without_useless(settings_of(checkpoint, read_metadata(checkpoint)))
    resumes = checkpoint.is_relative_to(Path(config.run.runs_dir, config.run.run))
    verb, advice = (
        ("resumes", "start another run with --run")
        if resumes
        else ("starts", "give another --init-from")
    )
    has_symbols = fixed.model.task != "vocoder"
    names = {
        section: names for section, names in INHERITED.items() if section != "data" or has_symbols
    }
    config = _with_fixed(config, fixed, names, f"the run {verb} from {checkpoint}, which", advice)
    if config.model.task == "vocoder" and fixed.teacher.teacher and not config.teacher.teacher:
        raise ConfigError(
            f"no --teacher was given, but the run {verb} from {checkpoint}, which learned from the"
            f" mels of the voice {fixed.teacher.teacher}. Give --teacher with this or another"
            f" voice, or {advice}."
        )
    return config


def taught_settings(config: Config, teacher: Path, settings: Config) -> Config:
    """Return the configuration with the settings that a teacher fixes.

    Args:
        teacher: folder of its run.
        settings: of its checkpoint.

    Raises:
        ConfigError: the configuration names another value of such a setting.
    """
    return _with_fixed(config, settings, TAUGHT, f"the teacher {teacher}", "give another --teacher")


def with_inherited_settings(config: Config) -> Config:
    """Return the configuration with all that its --teacher and its --init-from fix, as a new run
    will have it.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged.
        ConfigError: the configuration names another value of such a setting.
    """
    if config.teacher.teacher is not None:
        run = Path(config.teacher.teacher)
        checkpoint = select_checkpoint(run)
        config = taught_settings(config, run, settings_of(checkpoint, read_metadata(checkpoint)))
    if config.training.init_from is not None:
        config = inherit_settings(config, select_checkpoint(Path(config.training.init_from)))
    return config


def _with_fixed(config: Config, fixed: Config, names: Names, origin: str, advice: str) -> Config:
    """Return the configuration with some settings of another one.

    Args:
        origin: subject of the message about another value; advice: end of the message.
    """
    update = {}
    for section_name, section_names in names.items():
        section = getattr(config, section_name)
        values = {name: getattr(getattr(fixed, section_name), name) for name in section_names}
        for name, value in values.items():
            given = getattr(section, name)
            if name in section.model_fields_set and given != value:
                raise ConfigError(
                    f"{name} {given} was given, but {origin} has {value}. Leave {name} out, or"
                    f" {advice}."
                )
        update[section_name] = section.model_copy(update=values)
    return config.model_copy(update=update)
