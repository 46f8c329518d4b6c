"""Load the network of a trained run."""

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from myxtts.tasks.registry import TASKS
from myxtts.training.checkpoints import restore_groups
from myxtts.training.runs import check_task, settings_of, vocabulary_of, weights_group


def load_model(
    checkpoint: Path, metadata: dict[str, Any], device: str, task: str, precision: str = "float32"
) -> keras.Model:
    """Return the network of a checkpoint on a device, with the averaged weights if the run has
    them.

    Args:
        metadata: of the checkpoint, from `read_metadata`.
        task: the task that the network must have.
        precision: Keras dtype policy of the computation; variables are float32.

    Raises:
        CheckpointError: the weights are damaged, or belong to another task or architecture.
    """
    config = settings_of(checkpoint, metadata)
    check_task(checkpoint, config.model.task, task)
    with tf.device(device):
        network = TASKS[task].build(
            config, vocabulary_of(metadata), training=False, precision=precision
        )
    variables = {v.path: v.value for v in network.variables}
    restore_groups(checkpoint, {weights_group(metadata): variables})
    return network
