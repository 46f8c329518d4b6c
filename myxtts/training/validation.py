"""The loss on held-out utterances, with their real inputs and the averaged weights."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

import tensorflow as tf

from myxtts.batch import specs
from myxtts.data.pipeline import ReplicaBatches
from myxtts.training.state import TrainingState


class Metric(Protocol):
    """Measures what a task is for, beside the loss, over one pass."""

    def add(self, batch: dict, outputs: dict) -> None:
        """Look at one batch and the model's outputs for it."""

    def figures(self) -> dict[str, float]:
        """What was found, by name."""


class Validation:
    """Mean losses over a held-out corpus.

    Args:
        model: its call gives (losses, outputs).
        open_feed: opens the batches of one pass; their losses are shares of the whole corpus' mean.
        judge: makes a judge for each pass, if the task has one.
    """

    def __init__(
        self,
        model,
        open_feed: Callable[[], AbstractContextManager[Iterable[ReplicaBatches]]],
        judge: Callable[[], Metric] | None = None,
    ):
        def losses_of(batch):
            by_name, outputs = model(batch, training=False)
            return tf.stack([by_name[name] for name in model.LOSSES]), outputs if judge else {}

        self._names = model.LOSSES
        self._losses = tf.function(losses_of, input_signature=[specs(model.BATCH)])
        self._open_feed = open_feed
        self._judge = judge

    def __call__(self, state: TrainingState) -> dict[str, float]:
        """Each loss of the model, their sum as `loss`, and the figures of the judge."""
        judge, shares = self._judge and self._judge(), []
        with state.averaged_weights(), self._open_feed() as feed, tf.device(state.device):
            for (delivery,) in feed:
                share, outputs = self._losses(delivery.batch)
                shares.append(share)
                if judge:
                    judge.add(delivery.batch, outputs)
            total = tf.add_n(shares)
        losses = dict(zip(self._names, total.numpy().tolist(), strict=True))
        return losses | {"loss": sum(losses.values())} | (judge.figures() if judge else {})
