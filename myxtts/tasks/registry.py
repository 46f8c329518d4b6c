"""The tasks by name. Importing this module imports no TensorFlow: only the tasks do."""

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from myxtts.config.schema import Config
from myxtts.corpus.manifest import LengthRule

if TYPE_CHECKING:
    from myxtts.tasks.base import Task

TASKS = {"tts": "TTSTask", "asr": "ASRTask", "vocoder": "VocoderTask"}
"""The class of each task, in `tasks/NAME/task`."""


@cache
def task_named(name: str) -> "Task":
    return getattr(import_module(f"myxtts.tasks.{name}.task"), TASKS[name])()


def task_of(config: Config) -> "Task":
    """Return the task that the settings name."""
    return task_named(config.model.task)


def evaluation_of(name: str) -> ModuleType:
    """Return the module with the two measurements of a task.

    `score_run` measures a checkpoint and writes plots and sounds. `score_in_run` returns what
    measures a network during its run.
    """
    return import_module(f"myxtts.tasks.{name}.evaluation")


def length_rule_of(config: Config) -> LengthRule | None:
    """Return the rule that rejects utterances too short for their text; None without texts."""
    task = config.model.task
    if task == "vocoder" and config.teacher.teacher is None:
        return None
    if task == "asr":
        return LengthRule(ctc=True, subsampling=config.asr.subsampling)
    return LengthRule()
