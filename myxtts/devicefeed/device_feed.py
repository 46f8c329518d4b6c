"""Any dataset and any function as batches on a model device, made on a data device.

What comes in are elements of a `tf.data.Dataset` on the host. `prefetch_to_device` uploads them to
the data device, a thread calls the function of the user there, and other threads copy the results
to the model device by `tf.identity`, all before the step asks for them. What goes out are the
results, in the order of the dataset, in the thread that iterates.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import tensorflow as tf

from .contract import Batch, FeatureExtractor, Field
from .feed import Feed
from .handover import HandOver, LookAhead
from .internals import reuse_freed_memory, run_operations_as_kernels
from .producer import Producer, ReplicaFeed, trace_produce
from .routes import Route
from .upload import TaggedBatches

ENDLESS = 1 << 62


class Tag(NamedTuple):
    """Each batch is the only one of its step."""

    last: bool = True


class FeedTimes(NamedTuple):
    """Mean seconds of a batch, without the first two, which include tracing.

    Attributes:
        produce_s: of the producer, P. On a GPU it is true if the feed synchronizes.
        interval_s: from one batch to the next; the larger of P and the step, while queues are full.
        wait_s: in which the model device had no work, because no batch was there.
    """

    produce_s: float
    interval_s: float
    wait_s: float


def gain(produce_s: float, step_s: float, transfer_s: float = 0.0) -> float:
    """Return the gain of two devices over one, (P + C) / max(P, C, T), if no queue runs empty."""
    return (produce_s + step_s) / max(produce_s, step_s, transfer_s)


class DeviceFeed:
    """Batches on the model device, made on the data device ahead of the step that takes them.

        with DeviceFeed(dataset, produce, "/GPU:0", "/GPU:1") as feed:
            for batch in feed:
                feed.running = step(batch)
        print(feed.summary())

    There is one batch for each element of the dataset, in its order, and every depth gives the same
    batches. An error in the dataset or in `produce` is raised in place of its batch, after the
    batches before it. Closing is safe at any time and leaves no thread. The first batch is checked:
    PlacementError if it is on another device. Values of int32 stay in host memory, so that each one
    costs a copy to the host: use int64. Process-wide, eager operations run as kernels; otherwise
    two threads may swap tensors.

    Args:
        dataset: on the host; its `element_spec` is the signature of `produce`.
        produce: a function of the parts of an element, which returns a dictionary of tensors. It is
            traced once, without AutoGraph. A network that it uses must be on the data device.
        data_device, model_device: such as `/GPU:0`.
        depth: elements on the data device, and results on it, that wait at most.
        synchronize: wait for the data device after each batch, so that its times are true.

    Attributes:
        running: a tensor that the newest step returned. If it is set, a wait for a batch counts
            only from the end of that step.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        produce: Callable[..., dict[str, tf.Tensor]],
        data_device: str,
        model_device: str,
        *,
        depth: int = 3,
        synchronize: bool = False,
    ):
        run_operations_as_kernels()
        spec = dataset.element_spec
        parts = spec if isinstance(spec, tuple) else (spec,)
        inputs = _fields(_numbered(spec))

        def produce_batch(batch: Batch) -> dict[str, tf.Tensor]:
            values = [batch[name] for name in inputs]
            return produce(*tf.nest.pack_sequence_as(parts, values))

        traced = trace_produce(data_device, FeatureExtractor(inputs, {}, produce_batch))
        features = _fields(traced.structured_outputs[0])
        extractor = FeatureExtractor(inputs, features, produce_batch)
        self._dataset, self._device, self._depth = dataset, data_device, depth
        route = Route(data_device, model_device)
        producer = Producer(self._upload, extractor, data_device, 1, route, synchronize, traced)
        self._feed = ReplicaFeed([[Feed(producer.replica_batches(0), depth)]], [[0]], [route])
        hand_over = HandOver(features, [model_device])
        self._ahead = LookAhead(self._feed, hand_over, self._waiting)
        self.running: tf.Tensor | None = None
        self._taken, self._produced_s, self._waited_s = 0, 0.0, 0.0
        self._began_s = self._newest_s = 0.0

    def _upload(self, start: int, turns: Iterator[bool] | None = None) -> TaggedBatches:
        upload = tf.data.experimental.prefetch_to_device(self._device, self._depth)
        # Operations of tf.data have CPU kernels only.
        with tf.device("/CPU:0"):
            uploaded = self._dataset.apply(upload).with_options(self._dataset.options())
            elements = iter(uploaded)
        reuse_freed_memory()
        for element in elements:
            yield Tag(), _numbered(element)

    def __enter__(self) -> "DeviceFeed":
        self._feed.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._feed.__exit__(*raised)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batches = self._ahead.take(self.running, ENDLESS)
        ((batch,),), (times,) = batches, batches.times
        self._taken, self._newest_s = self._taken + 1, time.perf_counter()
        self._produced_s += times.produced_s - times.read_s
        if self._taken == 2:
            # Without what traced, and the waits of batches that are taken ahead of the first step.
            self._began_s, self._produced_s, self._waited_s = self._newest_s, 0.0, 0.0
        return batch

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        self._waited_s += time.perf_counter() - began_s

    @property
    def times(self) -> FeedTimes:
        """Raises ValueError for less than four batches."""
        if self._taken < 4:
            raise ValueError(f"{self._taken} batches were taken; four or more have times.")
        sums_s = (self._produced_s, self._newest_s - self._began_s, self._waited_s)
        return FeedTimes(*(each_s / (self._taken - 2) for each_s in sums_s))

    def summary(self) -> str:
        """Return the times in a line."""
        produce_s, interval_s, wait_s = self.times
        share = 100 * wait_s / interval_s
        return f"P {1e3 * produce_s:.1f} ms, step {1e3 * interval_s:.1f} ms, wait {share:.1f} %"


def _numbered(element: Any) -> dict[str, Any]:
    """Return the tensors of an element, or their specifications, by their numbers."""
    return {str(number): value for number, value in enumerate(tf.nest.flatten(element))}


def _fields(specs: dict[str, Any]) -> dict[str, Field]:
    """Return the contract of tensors; each unknown dimension has a name of its own."""
    fields = {}
    for name, spec in specs.items():
        dims = tuple(size or f"{name}.{i}" for i, size in enumerate(spec.shape))
        fields[name] = Field(spec.dtype.name, dims)
    return fields
