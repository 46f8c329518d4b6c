"""The tasks by name, and the length rule of each.

Importing this module imports no TensorFlow: only the tasks do.
"""

from functools import cache
from typing import TYPE_CHECKING

from myxtts.config.schema import Config
from myxtts.corpus.manifest import LengthRule

if TYPE_CHECKING:
    from myxtts.tasks.base import Task


@cache
def task_named(name: str) -> "Task":
    from myxtts.tasks.asr import ASRTask
    from myxtts.tasks.tts import TTSTask
    from myxtts.tasks.vocoder import VocoderTask

    tasks: dict[str, Task] = {"tts": TTSTask(), "asr": ASRTask(), "vocoder": VocoderTask()}
    return tasks[name]


def task_of(config: Config) -> "Task":
    """Return the task that the settings name."""
    return task_named(config.model.task)


def length_rule_of(config: Config) -> LengthRule | None:
    """Return the rule that rejects utterances too short for their text; None without texts."""
    task = config.model.task
    if task == "vocoder" and config.teacher.teacher is None:
        return None
    if task == "asr":
        return LengthRule(ctc=True, subsampling=config.asr.subsampling)
    return LengthRule()
