"""Stage D of a batch's life: features are computed on the data device."""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Literal, NamedTuple

import tensorflow as tf

from myxtts.batch import check_batch, tensor_specs
from myxtts.clock import Times
from myxtts.data.dataset import Corpus
from myxtts.data.features import FeatureExtractor
from myxtts.data.plan_iterator import ALL_TURNS, PlannedBatch, Position, Turn, planned_batches
from myxtts.data.readers.base import ReadBatches, Reader, Waves
from myxtts.placement.audit import require_device


class Produced(NamedTuple):
    """What the compiled function of a producer returns.

    Attributes:
        features: by name, on the data device.
        element: one element of a computed feature, float32 [1]. Reading it waits for the data
            device, without the operations that taking it from the features would need.
    """

    features: dict[str, tf.Tensor]
    element: tf.Tensor


ProduceFunction = Callable[[dict], Produced]


class ProducedBatch(NamedTuple):
    """A batch on the data device, with its plan and its times in the producer."""

    planned: PlannedBatch
    features: dict[str, tf.Tensor]
    times: Times


ReplicaBatches = tuple[ProducedBatch, ...]
"""One batch for each replica of this process, in the order of the routes."""


class Producer:
    """Makes batches on one data device for the replicas that it feeds: all of them, or in turn with
    other producers.

    Args:
        corpus: manifest and plan.
        reader: reads the planned batches.
        extractor, device: see the attributes.
        replicas: numbers of the replicas that it feeds among those of all processes.
        turn: which of their microbatches it makes.
        seed: source of the batches' randomness.
        reference_samples: longest stretch of a reference.
        synchronize: see `produced_batches`.

    Attributes:
        extractor: the task's batch contracts and features.
        device: the data device.
        produce: compiled function from waves to features on this device.
    """

    def __init__(
        self,
        corpus: Corpus,
        reader: Reader,
        extractor: FeatureExtractor,
        *,
        device: str,
        replicas: Sequence[int],
        turn: Turn,
        seed: int,
        reference_samples: int,
        synchronize: bool = False,
    ):
        self._corpus, self._reader = corpus, reader
        self._replicas, self._turn, self._seed = replicas, turn, seed
        self._reference_samples, self._synchronize = reference_samples, synchronize
        self.device, self.extractor = device, extractor
        self.produce = trace_produce(device, extractor)

    def planned(
        self,
        start: Position,
        epochs: int | None = None,
        mean_over: Literal["step", "epoch"] = "step",
        turn: Turn = ALL_TURNS,
    ) -> Iterator[PlannedBatch]:
        """Plan the batches from a position on, by default those of all producers; see
        `planned_batches`.
        """
        return planned_batches(
            self._corpus.plan,
            self._corpus.manifest,
            start,
            seed=self._seed,
            reference_samples=self._reference_samples,
            epochs=epochs,
            mean_over=mean_over,
            replicas=self._replicas,
            turn=turn,
            teacher_rows=self._corpus.teacher_rows,
        )

    def read(
        self,
        start: Position,
        epochs: int | None = None,
        mean_over: Literal["step", "epoch"] = "step",
        turn: Turn = ALL_TURNS,
    ) -> ReadBatches:
        """Plan, read and upload: stages A to C, by default for the batches of all producers."""
        return self._reader.read(self.planned(start, epochs, mean_over, turn), self.device)

    def replica_batches(
        self,
        start: Position,
        epochs: int | None = None,
        mean_over: Literal["step", "epoch"] = "step",
    ) -> Generator[ReplicaBatches, None, None]:
        """Make the batches of this producer's turn on the data device, one for each replica at a
        time.
        """
        with (
            closing(self.read(start, epochs, mean_over, self._turn)) as read,
            closing(
                produced_batches(read, self.device, self.extractor, self.produce, self._synchronize)
            ) as batches,
        ):
            yield from zip(*[batches] * len(self._replicas), strict=True)


def trace_produce(device: str, extractor: FeatureExtractor) -> ProduceFunction:
    """Compile `extractor.produce` for a device; it is traced once, with symbolic dimensions.

    Trace on the main thread; any thread may call the returned function.
    """
    computed = next(
        name
        for name, field in extractor.features.items()
        if name not in extractor.inputs and field.dtype == "float32"
    )

    produce = extractor.produce_on(device)

    def produce_on_device(waves: dict) -> Produced:
        with tf.device(
            device
        ):  # entered here, since a device scope around the tracing does not reach the operations
            features = produce(waves)
            return Produced(features, tf.reshape(features[computed], [-1])[:1])

    return tf.function(produce_on_device, autograph=False).get_concrete_function(
        tensor_specs(extractor.inputs)
    )


def produced_batches(
    read: Iterable[tuple[PlannedBatch, Waves]],
    device: str,
    extractor: FeatureExtractor,
    produce: ProduceFunction,
    synchronize: bool = False,
) -> Generator[ProducedBatch, None, None]:
    """Compute the features of each batch; runs in the feed's thread.

    For each batch, this thread issues one call of a compiled function. Eager operations beside it
    could meet those of the main thread: two Python threads that compute shapes on one GPU are
    reported to corrupt each other's (TensorFlow pull request 123993).

    Args:
        read: planned batches with their waves on the data device.
        device: the data device.
        extractor: has the contracts of the batches.
        produce: `trace_produce` of the extractor.
        synchronize: wait until the data device has finished each batch, so that the times are true
            on a GPU.

    Raises:
        TypeError, PlacementError: the first batch breaks its contract or is on another device.
    """
    began_s = time.perf_counter()
    for number, (planned, waves) in enumerate(read):
        read_s = time.perf_counter()
        with tf.device(device):  # places the results; tf.device is per thread
            features, element = produce(waves)
        if synchronize:
            element.numpy()
        times = Times(began_s, read_s, time.perf_counter(), device)
        if number == 0:
            check_batch(waves, extractor.inputs, "reading")
            check_batch(features, extractor.features, "producing")
            require_device(device, waves.items())
            require_device(device, features.items())
        yield ProducedBatch(planned, features, times)
        began_s = time.perf_counter()
