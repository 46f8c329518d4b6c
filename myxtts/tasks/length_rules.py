"""The length rule of each task that needs texts; apart from the tasks themselves, which import
TensorFlow.
"""

from collections.abc import Callable, Mapping

from myxtts.config.schema import Config
from myxtts.data.manifest import LengthRule

LENGTH_RULES: Mapping[str, Callable[[Config], LengthRule | None]] = {
    "tts": lambda config: LengthRule(),
    "asr": lambda config: LengthRule(ctc=True, subsampling=config.asr.subsampling),
    "vocoder": lambda config: None if config.teacher.teacher is None else LengthRule(),
}


def length_rule_of(config: Config) -> LengthRule | None:
    """Return the rule by which utterances that are too short for their text are rejected; None
    without texts.
    """
    return LENGTH_RULES[config.model.task](config)
