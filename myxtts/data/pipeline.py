"""Stages A to E joined: a feed of batches on the model device, from any position of the plan."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.config.schema import Data
from myxtts.data.corpora import Corpus
from myxtts.data.feed import Feed
from myxtts.data.pcm_cache import open_cache
from myxtts.data.planned import PlannedBatch, Position, planned_batches
from myxtts.data.producer import Delivery, deliveries, trace_produce, waves_of_plan
from myxtts.data.reading import name_culprit, rows_from_cache, rows_from_files, wave_batches
from myxtts.placement.routes import Route


class Pipeline:
    """Opens feeds over a corpus along a route.

    Args:
        corpus: manifest and plan.
        route: where batches are made, and where they are handed to.
        data: the settings of reading.
        seed: of the batches' randomness.
        cache_folder: for the decoded corpus, if the settings ask for one.
        voice_augmentation: see `produce`; for training alone, so that it is not taken from the settings of reading.
        settle: see `deliveries`.
    """

    def __init__(
        self,
        corpus: Corpus,
        route: Route,
        data: Data,
        seed: int,
        cache_folder: Path,
        voice_augmentation: float = 0.0,
        settle: bool = False,
    ):
        manifest = corpus.manifest
        self._corpus, self._route, self._seed, self._data = corpus, route, seed, data
        self._reference_samples = int(data.reference_seconds * SAMPLE_RATE_HZ) // HOP_SAMPLES * HOP_SAMPLES
        if data.cache_dataset:
            self._read_rows = rows_from_cache(manifest, open_cache(manifest, cache_folder, data.num_workers))
        else:
            self._read_rows = rows_from_files(manifest, data.use_tf_native_loading)
        self.produce = trace_produce(route.data, voice_augmentation)
        self._settle = settle

    def planned(
        self, start: Position, epochs: int | None = None, mean_over: Literal["step", "epoch"] = "step"
    ) -> Iterator[PlannedBatch]:
        """The plan of the batches from a position on; see `planned_batches`."""
        corpus, samples = self._corpus, self._reference_samples
        return planned_batches(corpus.plan, corpus.manifest, start, self._seed, samples, epochs, mean_over)

    def open_waves(
        self, start: Position, epochs: int | None = None, mean_over: Literal["step", "epoch"] = "step"
    ) -> tf.data.Dataset:
        """Stages B and C alone: WAVES on the data device, for each batch of `planned`."""
        data = self._data
        return wave_batches(
            lambda: self.planned(start, epochs, mean_over),
            self._read_rows,
            self._reference_samples,
            data.num_workers,
            data.buffer_size,
            self._route.data,
            data.prefetch_buffer_size,
        )

    def read(self, start: Position) -> Iterator[tuple[PlannedBatch, dict]]:
        """Batches of `planned` with their WAVES, without end; an utterance that cannot be read is named."""
        return waves_of_plan(self.planned(start), self.open_waves(start), self._explain)

    def _explain(self, planned: PlannedBatch, error: Exception) -> Exception:
        return name_culprit(self._corpus.manifest, planned, error)

    def open_feed(
        self, start: Position, epochs: int | None = None, mean_over: Literal["step", "epoch"] = "step"
    ) -> Feed[Delivery]:
        """Batches on the model device, for each of `planned`."""
        delivered = deliveries(
            self.planned(start, epochs, mean_over),
            self.open_waves(start, epochs, mean_over),
            self._route,
            self.produce,
            self._explain,
            self._settle,
        )
        return Feed(delivered, self._data.prefetch_buffer_size)
