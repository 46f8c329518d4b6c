"""Any dataset and any function as batches on a model device, made on a data device.

What comes in are elements of a `tf.data.Dataset` on the host. `prefetch_to_device` uploads them to
the data device, a thread calls the function of the user there, and other threads copy the results
to the model device by `tf.identity`, all before the step asks for them. What goes out are the
results, in the order of the dataset, in the thread that iterates.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import tensorflow as tf

from .audit import require_existing
from .contract import Batch, FeatureExtractor, Field
from .feed import Feed
from .handover import HandOver, LookAhead
from .internals import reuse_freed_memory, run_operations_as_kernels
from .producer import ReplicaBatches, produced_batches, trace_produce

ENDLESS = 1 << 62
TAG = SimpleNamespace(last=True)  # each batch is the only one of its step


class FeedTimes(NamedTuple):
    """Mean seconds of a batch, without the first two, which include tracing."""

    produce_s: float  # of the producer, P; true on a GPU if the feed synchronizes
    interval_s: float  # between batches: the larger of P and the step, while queues are full
    wait_s: float  # in which the model device had no work, because no batch was there


def gain(produce_s: float, step_s: float, transfer_s: float = 0.0) -> float:
    """Return the gain of two devices over one, (P + C) / max(P, C, T), if no queue runs empty."""
    return (produce_s + step_s) / max(produce_s, step_s, transfer_s)


class DeviceFeed:
    """Batches on the model device, made on the data device ahead of the step that takes them.

        with DeviceFeed(dataset, produce, "/GPU:0", "/GPU:1") as feed:
            for batch in feed:
                feed.running = step(**batch)
        print(feed.summary())

    There is one batch for each element of the dataset, in its order, at every depth. An error in
    the dataset or in `produce` is raised in place of its batch. A feed is iterated once, inside
    `with`; otherwise it raises RuntimeError. Closing is safe at any time and leaves no thread.
    Raises PlacementError if a device does not exist, or if the first batch is on another one.
    Values of int32 stay in host memory, so that each one costs a copy to the host: use int64.
    Process-wide, eager operations run as kernels; otherwise two threads may swap tensors.

    Args:
        dataset: on the host; its `element_spec` is the signature of `produce`.
        produce: a function of the parts of an element, which returns a flat dictionary of dense
            tensors; TypeError otherwise. It is traced once, without AutoGraph. A network that it
            uses must be on the data device.
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
        require_existing(data_device)
        require_existing(model_device)
        run_operations_as_kernels()
        spec = dataset.element_spec
        parts = spec if isinstance(spec, tuple) else (spec,)
        inputs = _fields("the dataset must have elements", _named(spec))
        features: dict[str, Field] = {}  # filled when `produce` is traced

        def produce_batch(batch: Batch) -> dict[str, tf.Tensor]:
            values = [batch[name] for name in inputs]
            made = produce(*tf.nest.pack_sequence_as(parts, values))
            features.update(_fields("`produce` must return a flat dictionary", made))
            return made

        extractor = FeatureExtractor(inputs, features, produce_batch)
        traced = trace_produce(data_device, extractor)
        batches = _batches(dataset, depth, data_device, extractor, traced, synchronize)
        self._feed = Feed(batches, depth)
        self._hand_over = HandOver(features, [model_device])
        self._ahead = LookAhead(self._feed, self._hand_over, self._waiting)
        self._ended = False
        self.running: tf.Tensor | None = None
        self._taken, self._produced_s, self._waited_s = 0, 0.0, 0.0
        self._began_s = self._newest_s = 0.0

    def __enter__(self) -> "DeviceFeed":
        self._feed.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended = True
        self._feed.__exit__(*raised)
        self._hand_over.close()

    def __iter__(self) -> Iterator[Batch]:
        if self._ended:
            hint = "repeat() the dataset, or make a feed for each epoch"
            raise RuntimeError(f"this feed has ended, after {self._taken} batches: {hint}.")
        return self

    def __next__(self) -> Batch:
        try:
            batches = self._ahead.take(self.running, ENDLESS)
        except StopIteration:
            self._ended = True
            raise
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
        """Return the times in a line, or that there are none yet."""
        if self._taken < 4:
            return f"{self._taken} batches: too few for times"
        produce_s, interval_s, wait_s = self.times
        share = 100 * wait_s / interval_s
        return f"P {1e3 * produce_s:.1f} ms, step {1e3 * interval_s:.1f} ms, wait {share:.1f} %"


def _batches(
    dataset: tf.data.Dataset, depth: int, device: str, *stage: Any
) -> Generator[ReplicaBatches, None, None]:
    """Upload the elements and make batches of them, each for one replica, in the feed's thread."""
    upload = tf.data.experimental.prefetch_to_device(device, depth)
    # Operations of tf.data have CPU kernels only.
    with tf.device("/CPU:0"):
        elements = iter(dataset.apply(upload).with_options(dataset.options()))
    reuse_freed_memory()
    tagged = ((TAG, _named(element)) for element in elements)
    with closing(produced_batches(tagged, device, *stage)) as batches:
        yield from zip(batches, strict=True)


def _named(element: Any) -> dict[str, Any]:
    """Return the tensors of an element, or their specifications, by their numbers."""
    return {f"part_{number}": part for number, part in enumerate(tf.nest.flatten(element))}


def _fields(asked: str, given: Any) -> dict[str, Field]:
    """Return the contract of tensors or their specifications; each unknown dimension has a name of
    its own. Raises TypeError for anything but a flat dictionary of dense tensors of known rank.
    """
    fields, faults = {}, []
    named = given.items() if isinstance(given, dict) else ()
    for name, value in named:
        is_named = isinstance(name, str) and isinstance(value, tf.Tensor | tf.TensorSpec)
        if is_named and value.shape.rank is not None:
            dims = tuple(size or f"{name}.{i}" for i, size in enumerate(value.shape))
            fields[name] = Field(value.dtype.name, dims)
        else:
            faults.append(f"{name!r}: {value!r}")
    if faults or not fields:
        raise TypeError(
            f"{asked} of dense tensors of known rank, but found {', '.join(faults) or repr(given)}."
            " Convert it, such as by `to_tensor`, `tf.sparse.to_dense` or `tf.ensure_shape`."
        )
    return fields
