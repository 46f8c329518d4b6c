"""The losses on held-out utterances, with their real inputs and the averaged weights."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

import tensorflow as tf

from myxtts.batch import Batch, tensor_specs
from myxtts.data.hand_over import compile_hand_over
from myxtts.data.pipeline import ProducedBatch
from myxtts.tasks.base import Metric
from myxtts.training.state import TrainingState


class Validation:
    """Mean losses over a held-out corpus, on the first replica.

    Args:
        model: its call returns (losses, outputs).
        device: of the model.
        open_feed: opens the batches of one pass; their losses are shares of the mean over the whole
            corpus.
        make_metric: makes the task's metric for each pass, if the task has one.
    """

    def __init__(
        self,
        model,
        device: str,
        open_feed: Callable[[], AbstractContextManager[Iterable[tuple[ProducedBatch, ...]]]],
        make_metric: Callable[[], Metric] | None = None,
    ):
        def losses_of(batch):
            by_name, outputs = model(batch, training=False)
            measured = make_metric().measure(batch, outputs) if make_metric else {}
            return tf.stack([by_name[name] for name in model.LOSS_NAMES]), measured

        self._names, self._device = model.LOSS_NAMES, device
        self._losses = tf.function(
            losses_of, input_signature=[tensor_specs(model.BATCH_FIELDS)], autograph=False
        )
        self._hand_over = compile_hand_over(model.BATCH_FIELDS, [device])
        self._open_feed = open_feed
        self._make_metric = make_metric

    def __call__(self, state: TrainingState) -> dict[str, float]:
        """Return each loss of the model, their sum as `loss`, and the figures of the metric."""
        with state.averaged_weights():
            return self.evaluate()

    def trace(self) -> None:
        """Compile what a pass computes, so that another thread may call `evaluate`."""
        self._losses.get_concrete_function()

    def measure(self, features: Batch) -> tuple[Batch, tf.Tensor, Batch]:
        """Return a batch on the model's device, its losses in the order of the model's names, and
        the metric's tensors.

        Args:
            features: of one batch, on any device.
        """
        (batch,) = self._hand_over([features])
        return batch, *self._losses(batch)

    def evaluate(self, pace: Callable[[], None] | None = None) -> dict[str, float]:
        """Return the same for the weights that the model has.

        Args:
            pace: called before each batch; nothing is queued on the device then.
        """
        metric, shares = self._make_metric and self._make_metric(), []
        # No scope around the loop: without a feed, this thread reads, and operations of tf.data
        # have CPU kernels only.
        with self._open_feed() as feed:
            for (produced,) in feed if pace is None else paced(feed, pace):
                with tf.device(self._device):
                    batch, share, measured = self.measure(produced.features)
                    shares.append(share)
                    if pace is not None:
                        share.numpy()  # the device is done
                    if metric:
                        metric.update(batch, measured)
            with tf.device(self._device):
                total = tf.add_n(shares)
        losses = dict(zip(self._names, total.numpy().tolist(), strict=True))
        return losses | {"loss": sum(losses.values())} | (metric.result() if metric else {})


def validation_metrics(losses: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics of a report by the losses of a validation."""
    return {f"validation_{name}": value for name, value in losses.items()}


def paced(
    batches: Iterable[tuple[ProducedBatch, ...]], pace: Callable[[], None]
) -> Iterator[tuple[ProducedBatch, ...]]:
    """Yield the batches; call `pace` before each is made."""
    iterator = iter(batches)
    while True:
        pace()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        yield batch
