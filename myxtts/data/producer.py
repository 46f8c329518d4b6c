"""Stages D and E of a batch's life: features are computed on the data device and copied to the model device."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import cycle
from typing import Literal, NamedTuple

import tensorflow as tf

from myxtts.batch import check_batch, tensor_specs
from myxtts.clock import Times
from myxtts.data.dataset import Corpus
from myxtts.data.features import FeatureExtractor
from myxtts.data.plan_iterator import PlannedBatch, Position, planned_batches
from myxtts.data.readers.base import ReadBatches, Reader, Waves
from myxtts.placement import devices
from myxtts.placement.audit import require_device
from myxtts.placement.routes import Route

ProduceFunction = Callable[[dict], dict]


class DeviceBatch(NamedTuple):
    """A batch on the model device, with its plan and its times in the producer."""

    planned: PlannedBatch
    batch: dict[str, tf.Tensor]
    times: Times


ReplicaBatches = tuple[DeviceBatch, ...]
"""One batch for each replica of this process, in the order of the routes."""


class Producer:
    """Makes batches on one data device for the replicas that it feeds, in turn.

    Args:
        corpus: manifest and plan.
        reader: reads the planned batches.
        extractor: the task's batch contracts and features.
        routes: of the replicas; all start at the same data device.
        replicas: numbers of these replicas among all processes.
        seed: source of the batches' randomness.
        reference_samples: longest stretch of a reference.
        synchronize: see `device_batches`.

    Attributes:
        device: the data device.
        produce: compiled function from waves to features on this device.
    """

    def __init__(
        self,
        corpus: Corpus,
        reader: Reader,
        extractor: FeatureExtractor,
        *,
        routes: Sequence[Route],
        replicas: Sequence[int],
        seed: int,
        reference_samples: int,
        synchronize: bool = False,
    ):
        self._corpus, self._reader, self._extractor = corpus, reader, extractor
        self._routes, self._replicas, self._seed = routes, replicas, seed
        self._reference_samples, self._synchronize = reference_samples, synchronize
        self.device = routes[0].data
        self.produce = trace_produce(self.device, extractor)

    def planned(
        self, start: Position, epochs: int | None = None, mean_over: Literal["step", "epoch"] = "step"
    ) -> Iterator[PlannedBatch]:
        """Plan the batches from a position on; see `planned_batches`."""
        return planned_batches(
            self._corpus.plan,
            self._corpus.manifest,
            start,
            seed=self._seed,
            reference_samples=self._reference_samples,
            epochs=epochs,
            mean_over=mean_over,
            replicas=self._replicas,
        )

    def read(
        self, start: Position, epochs: int | None = None, mean_over: Literal["step", "epoch"] = "step"
    ) -> ReadBatches:
        """Plan, read and upload: stages A to C."""
        return self._reader.read(self.planned(start, epochs, mean_over), self.device)

    def replica_batches(
        self, start: Position, epochs: int | None = None, mean_over: Literal["step", "epoch"] = "step"
    ) -> Iterator[ReplicaBatches]:
        """Make batches on the model devices, one for each replica at a time."""
        with (
            closing(self.read(start, epochs, mean_over)) as read,
            closing(device_batches(read, self._routes, self._extractor, self.produce, self._synchronize)) as batches,
        ):
            yield from zip(*[batches] * len(self._routes), strict=True)


def trace_produce(device: str, extractor: FeatureExtractor) -> ProduceFunction:
    """Compile `extractor.produce` for a device; it is traced once, with symbolic dimensions.

    Trace on the main thread; any thread may call the returned function.
    """

    def produce_on_device(waves: dict) -> dict:
        with tf.device(device):  # entered here, since a device scope around the tracing does not reach the operations
            return extractor.produce(waves)

    return tf.function(produce_on_device).get_concrete_function(tensor_specs(extractor.inputs))


def hand_over(features: dict, device: str) -> dict[str, tf.Tensor]:
    """Copy features to a device."""
    with tf.device(device):
        return {name: tf.identity(value) for name, value in features.items()}


def device_batches(
    read: Iterable[tuple[PlannedBatch, Waves]],
    routes: Sequence[Route],
    extractor: FeatureExtractor,
    produce: ProduceFunction,
    synchronize: bool = False,
) -> Generator[DeviceBatch, None, None]:
    """Compute the features of each batch and copy them to the model device; runs in the feed's thread.

    Args:
        read: planned batches with their waves on the data device.
        routes: the batches go to them in turn; all start at the same data device.
        extractor: has the contracts of the batches.
        produce: `trace_produce` of the extractor.
        synchronize: wait until the data device has finished each batch, so that the times are true on a GPU.

    Raises:
        TypeError, PlacementError: the first batch of a route breaks its contract or is on another device.
    """
    computed = next(
        name for name, field in extractor.features.items() if name not in extractor.inputs and field.dtype == "float32"
    )
    began_s = time.perf_counter()
    for number, (route, (planned, waves)) in enumerate(zip(cycle(routes), read, strict=False)):
        read_s = time.perf_counter()
        with tf.device(route.data):  # places the results; tf.device is per thread
            features = produce(waves)
        if synchronize:
            devices.synchronize(features[computed])
        produced_s = time.perf_counter()
        batch = hand_over(features, route.model)
        times = Times(began_s, read_s, produced_s, time.perf_counter(), route.data)
        if number < len(routes):
            check_batch(waves, extractor.inputs, "reading")
            check_batch(batch, extractor.features, "producing")
            require_device(route.data, waves.items())
            require_device(route.data, features.items())
            require_device(route.model, batch.items())
        yield DeviceBatch(planned, batch, times)
        began_s = time.perf_counter()
