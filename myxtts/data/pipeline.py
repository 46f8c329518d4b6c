"""Stages A to D together: batches on the data devices, from any position of the plan; and stage E.

In stage E, features are copied from the data device to the model device. TensorFlow lets a copy
between GPUs wait for everything that is queued on both when it is issued, and the caller wait for
the copy (`GPUUtil::DeviceToDeviceCopy`). So threads call it, early.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.base.clock import Times
from myxtts.base.tf_internals import run_operations_as_kernels
from myxtts.batch import Batch, Field, check_batch, tensor_specs
from myxtts.config.schema import Config, DataConfig
from myxtts.data.batch_plan import Pass, PlannedBatch, planned_batches
from myxtts.data.dataset import Corpus
from myxtts.data.features import FeatureExtractor
from myxtts.data.feed import Feed
from myxtts.data.manifest import Manifest
from myxtts.data.pcm_cache import open_cache, rows_from_cache
from myxtts.data.reading import ReadBatches, Reader, rows_from_files, rows_from_members
from myxtts.placement.audit import require_device
from myxtts.placement.routes import Route
from myxtts.stores import ShardCache, member_of, read_member

# Microbatches whose copies have begun, besides the one that a step takes next. So the copy for a
# step begins behind the step that is three before it, and may be issued a whole step late without
# letting a device wait.
HANDED_OVER_AHEAD = 2

# Reading the element waits for the data device, without the operations that taking it from the
# features would need.
ProduceFunction = Callable[[Batch], tuple[Batch, tf.Tensor]]
"""Batch -> features on the data device, and one element of a computed feature, float32 [1]."""


class ProducedBatch(NamedTuple):
    """A batch on the data device, with its plan and its times in the producer."""

    planned: PlannedBatch
    features: Batch
    times: Times


ReplicaBatches = tuple[ProducedBatch, ...]
"""One batch of each replica of a producer or of a process."""


@dataclass(eq=False)
class Producer:
    """Makes batches on one data device for some replicas, all or in turn with other producers.

    `plan_pass` is `planned_batches` of the corpus, which lacks only the pass, replicas and turns;
    `route` has the turns.
    """

    plan_pass: Callable[..., Iterator[PlannedBatch]]
    reader: Reader
    extractor: FeatureExtractor
    device: str
    replicas: Sequence[int]
    route: Route
    synchronize: bool

    def __post_init__(self):
        self.produce = trace_produce(self.device, self.extractor)

    def planned(self, corpus_pass: Pass, turns=None) -> Iterator[PlannedBatch]:
        return self.plan_pass(corpus_pass, replicas=self.replicas, turns=turns)

    def read(self, corpus_pass: Pass, turns=None) -> ReadBatches:
        """Plan, read and upload: stages A to C, of all microbatches or those of its turns."""
        return self.reader.read(self.planned(corpus_pass, turns), self.device)

    def replica_batches(self, corpus_pass: Pass) -> Generator[ReplicaBatches, None, None]:
        """Make the batches of this producer's turns, one for each replica at a time."""
        stage = self.device, self.extractor, self.produce, self.synchronize
        turns = (device == self.device for device in self.route.turns())
        with (
            closing(self.read(corpus_pass, turns)) as read,
            closing(produced_batches(read, *stage)) as batches,
        ):
            yield from zip(*[batches] * len(self.replicas), strict=True)


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

    def produce_on_device(waves: Batch) -> tuple[Batch, tf.Tensor]:
        # Entered here, since a device scope around the tracing does not reach the operations.
        with tf.device(device):
            features = produce(waves)
            return features, tf.reshape(features[computed], [-1])[:1]

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
    read: Iterable[tuple[PlannedBatch, Batch]],
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
    for number, (planned, waves) in enumerate(read):
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
        yield ProducedBatch(planned, features, times)
        began_s = time.perf_counter()


class Pipeline:
    """Opens feeds over a corpus along the routes of this process; `producers` has its producers.

    The plan of the corpus counts the replicas of all processes, among which `first_replica` is the
    number of the first route's. `cache_folder` gets the decoded corpus if `cache_dataset` is on.
    """

    def __init__(
        self,
        corpus: Corpus,
        routes: Sequence[Route],
        extractor: FeatureExtractor,
        data: DataConfig,
        *,
        seed: int,
        cache_folder: Path,
        synchronize: bool = False,
        first_replica: int = 0,
    ):
        # From here on, several threads run eager operations: of producers, and of an observer.
        run_operations_as_kernels()
        manifest = corpus.manifest
        reference_samples = reference_samples_of(data)
        reader = make_reader(manifest, extractor.inputs, reference_samples, data, cache_folder)
        plan_pass = partial(
            planned_batches,
            corpus.plan,
            manifest,
            seed=seed,
            reference_samples=reference_samples,
            teacher_rows=corpus.teacher_rows,
        )
        self._depth = data.prefetch_buffer_size
        # A data device has one producer, which its routes share; those of a route take turns.
        routes_of: dict[tuple[str, ...], list[int]] = {}
        for index, route in enumerate(routes):
            routes_of.setdefault(route.data_devices, []).append(index)
        self._indices = list(routes_of.values())
        self._groups = [
            [
                Producer(
                    *(plan_pass, reader, extractor, device),
                    replicas=[first_replica + index for index in indices],
                    route=routes[indices[0]],
                    synchronize=synchronize,
                )
                for device in data_devices
            ]
            for data_devices, indices in routes_of.items()
        ]
        self.producers = list(chain.from_iterable(self._groups))

    def open_unbuffered(
        self, corpus_pass: Pass
    ) -> "closing[Generator[ReplicaBatches, None, None]]":
        """Yield batches of the only producer without a feed: each is produced when it is taken."""
        (producer,) = self.producers
        return closing(producer.replica_batches(corpus_pass))

    def open_feed(self, corpus_pass: Pass) -> "ReplicaFeed":
        routes = [producers[0].route for producers in self._groups]
        return ReplicaFeed(self.feeds(corpus_pass), self._indices, routes)

    def feeds(self, corpus_pass: Pass) -> list[list[Feed[ReplicaBatches]]]:
        """Return new feeds of all producers, which are not open yet, by group."""
        return [
            [Feed(producer.replica_batches(corpus_pass), self._depth) for producer in group]
            for group in self._groups
        ]


def held_out_pipeline(
    corpus: Corpus, route: Route, extractor: FeatureExtractor, config: Config, cache_folder: Path
) -> Pipeline:
    """Return the pipeline of held-out batches: validation, samples, evaluation, merging.

    Open it with HELD_OUT_PASS, or with `Pass(epochs=1)` where losses do not count.
    """
    seed = config.training.seed
    return Pipeline(corpus, [route], extractor, config.data, seed=seed, cache_folder=cache_folder)


def reference_samples_of(data: DataConfig) -> int:
    """Return the padded length of the references: a whole number of frames."""
    return int(data.reference_seconds * SAMPLE_RATE_HZ) // HOP_SAMPLES * HOP_SAMPLES


def make_reader(
    manifest: Manifest,
    fields: dict[str, Field],
    reference_samples: int,
    data: DataConfig,
    cache_folder: Path,
) -> Reader:
    """Return the reader that the settings ask for, of waves with the contract `fields`."""
    if data.cache_dataset:
        read_rows = rows_from_cache(manifest, open_cache(manifest, cache_folder, data.num_workers))
    elif len(manifest) and member_of(manifest.paths[0]):
        read = read_member
        if manifest.shard_cache is not None and data.shard_cache_gb:
            read = ShardCache(manifest.shard_cache, 1e9 * data.shard_cache_gb).read
        read_rows = rows_from_members(manifest, read)
    else:
        read_rows = rows_from_files(manifest, data.use_tf_native_loading)
    return Reader(manifest, fields, reference_samples, data, read_rows)


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
            opened.pop_all()
        return self

    def __exit__(self, *raised) -> None:
        with ExitStack() as opened:
            for feed in self._feeds:
                opened.push(feed)

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

    def describe(self, waited_s: float, timeout_s: float) -> str:
        """Return what is ready after a wait for it to be full, as a part of the log."""
        ready, depth = map(sum, zip(*(feed.fill for feed in self._feeds), strict=True))
        if ready == depth:
            return f"filled in {waited_s:.1f} s"
        limit = " (--model-start-delay)" if waited_s >= timeout_s else ""
        return f"{ready} of {depth} batches after {waited_s:.1f} s{limit}"


def step_batches(feed: Iterable[ReplicaBatches]) -> Iterator[list[ReplicaBatches]]:
    """Yield the microbatches of one step after the other."""
    microbatches = []
    for batches in feed:
        microbatches.append(batches)
        if batches[0].planned.last:
            yield microbatches
            microbatches = []


class HandOver:
    """Copies a batch of a contract to each of some devices; to be made on the main thread.

    Calling it waits until the copies are done. `begin` has a thread do that.
    """

    def __init__(self, fields: Mapping[str, Field], devices: Sequence[str]):
        def copy(batches: Sequence[Batch]) -> list[Batch]:
            copies = []
            for batch, device in zip(batches, devices, strict=True):
                with tf.device(device):
                    copies.append({name: tf.identity(value) for name, value in batch.items()})
            return copies

        specs = [tensor_specs(dict(fields))] * len(devices)
        self._copy = tf.function(copy, autograph=False).get_concrete_function(specs)
        self._device = devices[0]
        self._threads = ThreadPoolExecutor(1 + HANDED_OVER_AHEAD, "myxtts-hand-over")

    def __call__(self, batches: Sequence[Batch]) -> list[Batch]:
        # The `device` of the results; their `backing_device` is the one of each copy.
        with tf.device(self._device):
            return self._copy(list(batches))

    def begin(self, batches: Sequence[Batch]) -> "Future[list[Batch]]":
        return self._threads.submit(self, batches)
