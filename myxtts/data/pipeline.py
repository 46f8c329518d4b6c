"""Stages A to E joined: rounds of batches on the model devices, from any position of the plan."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Literal

import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.config.schema import DataConfig
from myxtts.data.dataset import Corpus
from myxtts.data.feed import Feed
from myxtts.data.plan_iterator import PlannedBatch, Position, planned_batches
from myxtts.data.producer import DeviceBatch, FeatureExtractor, device_batches, trace_produce, with_waves
from myxtts.data.readers.cache import open_cache
from myxtts.data.readers.files import name_culprit, rows_from_cache, rows_from_files, wave_batches
from myxtts.data.readers.service import DataService
from myxtts.placement.routes import Route

ReplicaBatches = tuple[DeviceBatch, ...]  # a batch for each replica of this process, in the order of its routes


class Pipeline:
    """Opens feeds over a corpus along the routes of this process.

    Args:
        corpus: manifest and plan; the plan counts the replicas of all processes.
        routes: where batches are made and where they are handed to, one for each replica of this process.
        data: the settings of reading.
        seed: of the batches' randomness.
        cache_folder: for the decoded corpus, if the settings ask for one.
        recipe: how the task's batches are made.
        settle: see `device_batches`.
        first_replica: the number of the first of them among all.

    Attributes:
        producers: one for each data device.
    """

    def __init__(
        self,
        corpus: Corpus,
        routes: Sequence[Route],
        data: DataConfig,
        seed: int,
        cache_folder: Path,
        extractor: FeatureExtractor,
        synchronize: bool = False,
        first_replica: int = 0,
    ):
        manifest = corpus.manifest
        service, read_rows = None, None
        if data.data_service is not None:
            service = DataService(data.data_service)
        elif data.cache_dataset:
            read_rows = rows_from_cache(manifest, open_cache(manifest, cache_folder, data.num_workers))
        else:
            read_rows = rows_from_files(manifest, data.use_tf_native_loading)
        self._depth = data.prefetch_buffer_size
        own = {}  # data device -> places of its routes
        for place, route in enumerate(routes):
            own.setdefault(route.data, []).append(place)
        self._places = list(own.values())
        self.producers = [
            Producer(
                corpus,
                [routes[place] for place in places],
                [first_replica + place for place in places],
                data,
                seed,
                read_rows,
                service,
                extractor,
                synchronize,
            )
            for places in self._places
        ]

    def open_feed(
        self, start: Position, epochs: int | None = None, mean_over: Literal["step", "epoch"] = "step"
    ) -> "ReplicaFeed":
        """Rounds of batches on the model devices, for each of the steps of the plan."""
        feeds = [Feed(producer.rounds(start, epochs, mean_over), self._depth) for producer in self.producers]
        return ReplicaFeed(feeds, self._places)


class Producer:
    """Makes batches on one data device for the replicas that it feeds, by turns.

    Args:
        routes: all from this data device.
        replicas: their numbers among all.
        read_rows: see `wave_batches`.
        service: reads in its place, where there is one.
        others: see Pipeline.

    Attributes:
        device: the data device.
        produce: waves -> features on it.
    """

    def __init__(
        self, corpus, routes, replicas, data: DataConfig, seed: int, read_rows, service, extractor, synchronize
    ):
        self._corpus, self._routes, self._replicas, self._data = corpus, routes, replicas, data
        self._seed, self._recipe, self._settle = seed, extractor, synchronize
        self._read_rows, self._service = read_rows, service
        self._reference_samples = int(data.reference_seconds * SAMPLE_RATE_HZ) // HOP_SAMPLES * HOP_SAMPLES
        self.device = routes[0].data
        self.produce = trace_produce(self.device, extractor)

    def planned(
        self, start: Position, epochs: int | None = None, mean_over: Literal["step", "epoch"] = "step"
    ) -> Iterator[PlannedBatch]:
        """The plan of the batches from a position on; see `planned_batches`."""
        corpus, samples = self._corpus, self._reference_samples
        return planned_batches(
            corpus.plan, corpus.manifest, start, self._seed, samples, epochs, mean_over, self._replicas
        )

    def open_waves(
        self, start: Position, epochs: int | None = None, mean_over: Literal["step", "epoch"] = "step"
    ) -> Iterable[dict[str, tf.Tensor]]:
        """Stages B and C alone: waves on the data device, for each batch of `planned`."""
        data = self._data
        if self._service is not None:
            return self._service.batches(
                self.planned(start, epochs, mean_over),
                self._corpus.manifest,
                self._recipe.waves,
                self._reference_samples,
                data.num_workers,
                data.buffer_size,
                self.device,
                data.prefetch_buffer_size,
            )
        return wave_batches(
            lambda: self.planned(start, epochs, mean_over),
            self._read_rows,
            self._reference_samples,
            data.num_workers,
            data.buffer_size,
            self.device,
            data.prefetch_buffer_size,
            self._recipe.waves,
        )

    def read(self, start: Position) -> Iterator[tuple[PlannedBatch, dict]]:
        """Batches of `planned` with their waves, without end; an utterance that cannot be read is named."""
        return with_waves(self.planned(start), self.open_waves(start), self._explain)

    def rounds(
        self, start: Position, epochs: int | None = None, mean_over: Literal["step", "epoch"] = "step"
    ) -> Iterator[ReplicaBatches]:
        """Batches on the model devices, one for each replica that it feeds at a time."""
        waves = self.open_waves(start, epochs, mean_over)
        delivered = device_batches(
            self.planned(start, epochs, mean_over),
            waves,
            self._routes,
            self._recipe,
            self.produce,
            self._explain,
            self._settle,
        )
        with ExitStack() as opened:
            if hasattr(waves, "close"):  # of a service
                opened.callback(waves.close)
            opened.enter_context(closing(delivered))
            yield from zip(*[delivered] * len(self._routes), strict=True)

    def _explain(self, planned: PlannedBatch, error: Exception) -> Exception:
        return name_culprit(self._corpus.manifest, planned, error)


class ReplicaFeed:
    """The feeds of all producers as one: the next batch of each replica, in the order of the routes.

    Args:
        feeds: each gives a part of every round.
        places: where in the round the batches of each feed belong.
    """

    def __init__(self, feeds: Sequence[Feed[ReplicaBatches]], places: Sequence[Sequence[int]]):
        self._feeds = feeds
        after_each_other = [place for own in places for place in own]
        self._order = sorted(range(len(after_each_other)), key=after_each_other.__getitem__)
        self._opened = ExitStack()

    def __enter__(self) -> "ReplicaFeed":
        with ExitStack() as opened:
            for feed in self._feeds:
                opened.enter_context(feed)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *raised) -> None:
        self._opened.close()

    def __iter__(self) -> Iterator[ReplicaBatches]:
        return self

    def __next__(self) -> ReplicaBatches:
        parts = [delivery for feed in self._feeds for delivery in next(feed)]
        return tuple(parts[place] for place in self._order)

    def wait_until_full(self, timeout_s: float) -> float:
        """Wait until each feed has once been full or has ended, `timeout_s` at the longest.

        Returns:
            The seconds waited.
        """
        waited_s = 0.0
        for feed in self._feeds:
            waited_s += feed.wait_until_full(timeout_s - waited_s)
        return waited_s
