"""The loss on held-out utterances, with their real inputs and the averaged weights."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import tensorflow as tf

from myxtts.data.producer import Delivery
from myxtts.training.state import TrainingState
from myxtts.training.step import FEATURES_SPEC


class Validation:
    """Mean losses over a held-out corpus.

    Args:
        model: its call gives (losses, outputs).
        open_feed: opens the batches of one pass; their losses are shares of the whole corpus' mean.
    """

    def __init__(self, model, open_feed: Callable[[], AbstractContextManager[Iterable[Delivery]]]):
        def losses_of(batch):
            by_name, _ = model(batch, training=False)
            return tf.stack([by_name[name] for name in model.LOSSES])

        self._names = model.LOSSES
        self._losses = tf.function(losses_of, input_signature=[FEATURES_SPEC])
        self._open_feed = open_feed

    def __call__(self, state: TrainingState) -> dict[str, float]:
        """Each loss of the model, and their sum as `loss`."""
        with state.averaged_weights(), self._open_feed() as feed, tf.device(state.device):
            total = tf.add_n([self._losses(delivery.batch) for delivery in feed])
        losses = dict(zip(self._names, total.numpy().tolist(), strict=True))
        return losses | {"loss": sum(losses.values())}
