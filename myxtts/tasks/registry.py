"""The tasks by name."""

from collections.abc import Mapping

from myxtts.config.schema import Config
from myxtts.tasks.asr import ASRTask
from myxtts.tasks.base import Task
from myxtts.tasks.tts import TTSTask
from myxtts.tasks.vocoder import VocoderTask

TASKS: Mapping[str, Task] = {"tts": TTSTask(), "asr": ASRTask(), "vocoder": VocoderTask()}


def task_of(config: Config) -> Task:
    """Return the task that the settings name."""
    return TASKS[config.model.task]
