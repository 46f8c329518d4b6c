"""The length rule of each task. No TensorFlow, which the tasks themselves import."""

from collections.abc import Callable, Mapping

from myxtts.config.schema import Config
from myxtts.data.manifest import LengthRule

LENGTH_RULES: Mapping[str, Callable[[Config], LengthRule | None]] = {
    "tts": lambda config: LengthRule(),
    "asr": lambda config: LengthRule(ctc=True, subsampling=config.asr.subsampling),
    "vocoder": lambda config: None if config.teacher.teacher is None else LengthRule(),
}


def length_rule_of(config: Config) -> LengthRule | None:
    """Return the rule that rejects utterances too short for their text; None without texts."""
    return LENGTH_RULES[config.model.task](config)
