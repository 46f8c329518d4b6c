"""Stages A to D together: batches on the data devices, from any position of the plan."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Literal

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.batch import Field
from myxtts.config.schema import DataConfig
from myxtts.data.dataset import Corpus
from myxtts.data.features import FeatureExtractor
from myxtts.data.feed import Feed
from myxtts.data.manifest import Manifest
from myxtts.data.plan_iterator import Position, Turn
from myxtts.data.producer import ProducedBatch, Producer, ReplicaBatches
from myxtts.data.readers.base import Reader
from myxtts.data.readers.cache import open_cache, rows_from_cache
from myxtts.data.readers.files import rows_from_files
from myxtts.data.readers.local import LocalReader
from myxtts.data.readers.service import ServiceReader
from myxtts.placement.routes import Route


class Pipeline:
    """Opens feeds over a corpus along the routes of this process.

    Args:
        corpus: manifest and plan; the plan counts the replicas of all processes.
        routes: data devices and model device of each replica of this process.
        extractor: the task's batch contracts and features.
        data: the settings of reading.
        seed: source of the batches' randomness.
        cache_folder: gets the decoded corpus if `data.cache_dataset` is on.
        synchronize: see `produced_batches`.
        first_replica: number of the first route's replica among all processes.

    Attributes:
        producers: one for each data device.
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
        reference_samples = reference_samples_of(data)
        reader = make_reader(
            corpus.manifest, extractor.inputs, reference_samples, data, cache_folder
        )
        self._depth = data.prefetch_buffer_size
        routes_of: dict[
            tuple[str, ...], list[int]
        ] = {}  # data devices that take turns -> indices of their routes
        for index, route in enumerate(routes):
            routes_of.setdefault(route.data_devices, []).append(index)
        self._indices = list(routes_of.values())
        self._groups = [
            [
                Producer(
                    corpus,
                    reader,
                    extractor,
                    device=device,
                    replicas=[first_replica + index for index in indices],
                    turn=Turn(number, len(data_devices)),
                    seed=seed,
                    reference_samples=reference_samples,
                    synchronize=synchronize,
                )
                for number, device in enumerate(data_devices)
            ]
            for data_devices, indices in routes_of.items()
        ]
        self.producers = [producer for group in self._groups for producer in group]

    @contextmanager
    def open_unbuffered(
        self,
        start: Position,
        epochs: int | None = None,
        mean_over: Literal["step", "epoch"] = "step",
    ) -> Iterator[Iterator[ReplicaBatches]]:
        """Return the batches of the only producer without a feed: each is produced when it is
        taken.
        """
        (producer,) = self.producers
        with closing(producer.replica_batches(start, epochs, mean_over)) as batches:
            yield batches

    def open_feed(
        self,
        start: Position,
        epochs: int | None = None,
        mean_over: Literal["step", "epoch"] = "step",
    ) -> "ReplicaFeed":
        """Return a feed of the batches from a position on; see `planned_batches` for the
        arguments.
        """
        return ReplicaFeed(
            [
                [
                    Feed(producer.replica_batches(start, epochs, mean_over), self._depth)
                    for producer in group
                ]
                for group in self._groups
            ],
            self._indices,
        )


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
    """Return the reader that the settings ask for.

    Args:
        fields: contract of the waves.
        reference_samples: padded length of the references.
        cache_folder: gets the decoded corpus if `data.cache_dataset` is on.
    """
    if data.data_service is not None:
        return ServiceReader(data.data_service, manifest, fields, reference_samples, data)
    if data.cache_dataset:
        read_rows = rows_from_cache(manifest, open_cache(manifest, cache_folder, data.num_workers))
    else:
        read_rows = rows_from_files(manifest, data.use_tf_native_loading)
    return LocalReader(manifest, fields, reference_samples, data, read_rows)


class ReplicaFeed:
    """The feeds of all producers as one: the next batch of each replica, in the order of the
    routes.

    An error of a producer is raised in place of its batch, after the batches of the other producers
    before it.

    Where producers take turns, the place of a batch in its feed is freed when the next batch is
    taken: after the call of the step that hands it over. The copy from a GPU waits for all work
    that is queued there when the copy is issued. A producer that found a place sooner would begin
    another batch, and the copy would wait for that.

    Args:
        groups: the feeds of producers that take turns; each feed of a group gives batches of the
            same replicas.
        indices: for each group the routes that its batches belong to.
    """

    def __init__(
        self, groups: Sequence[Sequence[Feed[ReplicaBatches]]], indices: Sequence[Sequence[int]]
    ):
        self._groups, self._taken = groups, 0
        by_group = [index for of_group in indices for index in of_group]
        self._order = sorted(range(len(by_group)), key=by_group.__getitem__)
        self._opened = ExitStack()

    def __enter__(self) -> "ReplicaFeed":
        with ExitStack() as opened:
            for feed in chain.from_iterable(self._groups):
                opened.enter_context(feed)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *raised) -> None:
        self._opened.close()

    def __iter__(self) -> Iterator[ReplicaBatches]:
        return self

    def __next__(self) -> ReplicaBatches:
        for feeds in self._groups:
            feeds[(self._taken - 1) % len(feeds)].release()
        batches: list[ProducedBatch] = []
        for feeds in self._groups:
            feed = feeds[self._taken % len(feeds)]
            batches += feed.hold() if len(feeds) > 1 else next(feed)
        self._taken += 1
        return tuple(batches[index] for index in self._order)

    def heed(self, is_stopped: Callable[[], bool]) -> None:
        """Let the consumer's waits end with StopArrived at a stop."""
        for feed in chain.from_iterable(self._groups):
            feed.is_stopped = is_stopped

    @property
    def is_ready(self) -> bool:
        """Whether the next batches can be taken without waiting."""
        return all(feeds[self._taken % len(feeds)].is_ready for feeds in self._groups)

    @property
    def is_full(self) -> bool:
        """Whether all producers have nothing to do."""
        return all(feed.is_full for feed in chain.from_iterable(self._groups))

    def wait_until_full(
        self, timeout_s: float, is_stopped: Callable[[], bool] = lambda: False
    ) -> float:
        """Wait until each feed has been full once or has ended, at most `timeout_s`, or until a
        stop.

        Returns:
            The seconds waited.
        """
        waited_s = 0.0
        for feed in chain.from_iterable(self._groups):
            waited_s += feed.wait_until_full(timeout_s - waited_s, is_stopped)
        return waited_s
