"""A second network, which gets the weights of a state between two steps, or those of another
network.
"""

from collections.abc import Mapping
from pathlib import Path

import keras
import tensorflow as tf

from myxtts.models.loss_groups import NETWORK, loss_groups_of
from myxtts.placement.audit import require_device
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.checkpoints import restore_groups
from myxtts.training.runs import weights_group


class Snapshot:
    """A network with a copy of the weights that other variables have at some time.

    Args:
        network: built on the device. The copy is traced here, on the main thread.
        sources: what is copied, by the names of the variables that inference uses.
        device: of the network.

    Attributes:
        network: with the weights of the newest snapshot.

    Raises:
        PlacementError: a variable of the network is on another device.
    """

    def __init__(self, network: keras.Model, sources: Mapping[str, tf.Variable], device: str):
        variables = {v.path: v.value for v in loss_groups_of(network)[NETWORK].variables}
        if variables.keys() != sources.keys():
            raise RuntimeError(
                f"the snapshot has other variables: {sorted(variables.keys() ^ sources.keys())[:3]}"
            )
        require_device(device, variables.items())
        self.network, self._variables = network, variables

        def copy() -> None:
            for name, variable in variables.items():
                with tf.device(sources[name].device):
                    weights = sources[name].read_value()
                with tf.device(device):
                    variable.assign(weights)

        self._copy = tf.function(copy, autograph=False).get_concrete_function()

    def take(self) -> None:
        """Copy the weights as they are after the last step that was queued: from device to device,
        in one call.
        """
        self._copy()

    def load(self, checkpoint: Path) -> None:
        """Set the weights from a checkpoint; raises CheckpointError if it is damaged."""
        restore_groups(checkpoint, {weights_group(read_metadata(checkpoint)): self._variables})
