"""Batches on the data devices, each made by a thread of its own.

What comes in are batches that were read and uploaded, with tags. The thread of a feed issues one
call of a compiled function for each, the stage that is moved away from the model device. What goes
out are the results on the data device, with their tags and times.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

import tensorflow as tf

from .audit import require_device
from .contract import Batch, FeatureExtractor, check_batch, tensor_specs
from .errors import PlacementError
from .feed import Feed
from .routes import Route
from .times import Times
from .upload import TaggedBatches

# Reading the element waits for the data device, without the operations that taking it from the
# features would need.
ProduceFunction = Callable[[Batch], tuple[Batch, tf.Tensor]]
"""Batch -> features on the data device, and one element of a computed feature, float32 [1]."""


class ProducedBatch(NamedTuple):
    """A batch on the data device, with its tag and its times in the producer.

    A tag is any object with `last`: whether the batch is the last one of its step.
    """

    tag: Any
    features: Batch
    times: Times


ReplicaBatches = tuple[ProducedBatch, ...]
"""One batch of each replica of a producer or of a process."""


@dataclass(eq=False)
class Producer:
    """Makes batches on one data device for some replicas, all or in turn with other producers.

    `read(start, turns)` opens the batches from a position on, with their tags, uploaded to the
    device: all, or those whose turn is true. `route` has the turns.
    """

    read: Callable[..., TaggedBatches]
    extractor: FeatureExtractor
    device: str
    replicas: int
    route: Route
    synchronize: bool

    def __post_init__(self):
        self.produce = trace_produce(self.device, self.extractor)

    def replica_batches(self, start: Any) -> Generator[ReplicaBatches, None, None]:
        """Make the batches of this producer's turns, one for each replica at a time."""
        stage = self.device, self.extractor, self.produce, self.synchronize
        turns = (device == self.device for device in self.route.turns())
        with (
            closing(self.read(start, turns)) as read,
            closing(produced_batches(read, *stage)) as batches,
        ):
            yield from zip(*[batches] * self.replicas, strict=True)


def trace_produce(device: str, extractor: FeatureExtractor) -> Any:
    """Compile `extractor.produce` for a device, as a ProduceFunction with symbolic dimensions.

    Trace on the main thread; any thread may call the returned function. Raises PlacementError if
    nothing that is computed has a floating-point type, by which a producer can wait for its device.
    """
    produce = extractor.produce_on(device)

    def produce_on_device(waves: Batch) -> tuple[Batch, tf.Tensor]:
        # Entered here, since a device scope around the tracing does not reach the operations.
        with tf.device(device):
            features = produce(waves)
            for name, value in features.items():
                if name not in extractor.inputs and value.dtype.is_floating:
                    return features, tf.reshape(value, [-1])[:1]
        raise PlacementError(
            f"{', '.join(features)} are made on {device}, but none of them is a floating-point"
            " tensor, by which a producer waits for its device. Return one: int32 is on the host,"
            " and int64 is not waited for."
        )

    return tf.function(produce_on_device, autograph=False).get_concrete_function(
        tensor_specs(extractor.inputs)
    )


@cache
def launch_lock(device: str) -> AbstractContextManager:
    """Return the lock under which producer and observer launch work on their GPU, each in turn.

    A value takes memory until what reads it is launched, so that the peaks of the two do not add
    up. On a CPU they work at the same time, and there is no lock.
    """
    return Lock() if "GPU:" in device else nullcontext()


def produced_batches(
    read: Iterable[tuple[Any, Batch]],
    device: str,
    extractor: FeatureExtractor,
    produce: ProduceFunction,
    synchronize: bool = False,
) -> Generator[ProducedBatch, None, None]:
    """Compute the features of batches that were read to the data device, in the feed's thread.

    For each batch, this thread issues one call of a compiled function. With `synchronize` it waits
    until the data device has finished each batch, so that the times are true on a GPU. Raises
    TypeError or PlacementError if the first batch breaks its contract or is on another device.
    """
    began_s = time.perf_counter()
    for number, (tag, waves) in enumerate(read):
        read_s = time.perf_counter()
        # Places the results. tf.device is per thread, so it is entered here.
        with launch_lock(device), tf.device(device):
            features, element = produce(waves)
        if synchronize:
            element.numpy()
        times = Times(began_s, read_s, time.perf_counter(), device)
        if number == 0:
            check_batch(waves, extractor.inputs, "reading")
            check_batch(features, extractor.features, "producing")
            require_device(device, waves.items())
            require_device(device, features.items())
        yield ProducedBatch(tag, features, times)
        began_s = time.perf_counter()


class ReplicaFeed:
    """The feeds of all producers as one: a batch of each replica, in the order of the routes.

    An error of a producer is raised instead of its batch, after the batches of the other producers
    before it.

    A group has the feeds of producers that take turns, by one of `routes`; `indices` are the routes
    of its batches.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Feed[ReplicaBatches]]],
        indices: Sequence[Sequence[int]],
        routes: Sequence[Route],
    ):
        self._routes = routes
        self._begin(groups)
        by_group = list(chain.from_iterable(indices))
        self._order = sorted(range(len(by_group)), key=by_group.__getitem__)

    def _begin(self, groups: Sequence[Sequence[Feed[ReplicaBatches]]]) -> None:
        self._feeds = list(chain.from_iterable(groups))
        devices = chain.from_iterable(route.data_devices for route in self._routes)
        feed_of = dict(zip(devices, self._feeds, strict=True))
        self._turns = zip(*(map(feed_of.get, route.turns()) for route in self._routes), strict=True)
        self._next = next(self._turns)

    def __enter__(self) -> "ReplicaFeed":
        # Without a thread for a later feed, the earlier ones are closed again.
        with ExitStack() as opened:
            for feed in self._feeds:
                opened.enter_context(feed)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *raised) -> None:
        self._opened.close()

    def replace(self, groups: Sequence[Sequence[Feed[ReplicaBatches]]]) -> None:
        """Close the feeds, without their batches, and go on with new ones; see `Pipeline.feeds`."""
        is_stopped = self._feeds[0].is_stopped
        self.__exit__()
        self._begin(groups)
        self.stop_waiting_when(is_stopped)
        self.__enter__()

    def __iter__(self) -> Iterator[ReplicaBatches]:
        return self

    def __next__(self) -> ReplicaBatches:
        batches: list[ProducedBatch] = []
        for feed in self._next:
            batches += next(feed)
        self._next = next(self._turns)
        return tuple(batches[index] for index in self._order)

    def stop_waiting_when(self, is_stopped: Callable[[], bool]) -> None:
        """Let the consumer's waits end with StopArrived at a stop."""
        for feed in self._feeds:
            feed.is_stopped = is_stopped

    @property
    def is_ready(self) -> bool:
        return all(feed.is_ready for feed in self._next)

    @property
    def is_full(self) -> bool:
        return all(feed.is_full for feed in self._feeds)

    def wait_until_full(
        self, timeout_s: float, is_stopped: Callable[[], bool] = lambda: False
    ) -> float:
        """Return the seconds waited for each feed to be full or ended, or for a stop."""
        waited_s = 0.0
        for feed in self._feeds:
            waited_s += feed.wait_until_full(timeout_s - waited_s, is_stopped)
        return waited_s

    @property
    def fill(self) -> tuple[int, int]:
        """The batches that wait for the consumer, and how many there can be."""
        ready, depth = zip(*(feed.fill for feed in self._feeds), strict=True)
        return sum(ready), sum(depth)
