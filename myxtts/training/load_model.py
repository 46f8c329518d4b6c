"""A trained run, read back: the network with its weights."""

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from myxtts.errors import CheckpointError
from myxtts.tasks.registry import TASKS
from myxtts.training.checkpoint import restore_variables
from myxtts.training.select_checkpoint import settings_of, vocabulary_of, weights_file


def load_model(checkpoint: Path, metadata: dict[str, Any], device: str, task: str = "tts") -> keras.Model:
    """The network of a checkpoint on a device, in float32; with the averaged weights where the run has them.

    Args:
        about: its state.json, by `read_metadata`.
        task: that it is to be of.

    Raises:
        CheckpointError: the weights are damaged, or of another task or architecture.
    """
    config = settings_of(checkpoint, metadata)
    if config.model.task != task:
        raise CheckpointError(
            f"{checkpoint} was to be used as a {task}, but it is a {config.model.task}. "
            f"Give a run that was trained with --task {task}."
        )
    with tf.device(device):
        network = TASKS[task].build(config, vocabulary_of(metadata), training=False)
    restore_variables(weights_file(checkpoint, metadata), {v.path: v.value for v in network.variables})
    return network
