"""Stages A to E joined: a feed of batches on the model device, from any position of the plan."""

from pathlib import Path
from typing import Literal

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.config.schema import Data
from myxtts.data.corpora import Corpus
from myxtts.data.feed import Feed
from myxtts.data.pcm_cache import open_cache
from myxtts.data.planned import Position, planned_batches
from myxtts.data.producer import Delivery, deliveries, trace_produce
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
    """

    def __init__(
        self,
        corpus: Corpus,
        route: Route,
        data: Data,
        seed: int,
        cache_folder: Path,
        voice_augmentation: float = 0.0,
    ):
        manifest = corpus.manifest
        self._corpus, self._route, self._seed, self._data = corpus, route, seed, data
        self._reference_samples = int(data.reference_seconds * SAMPLE_RATE_HZ) // HOP_SAMPLES * HOP_SAMPLES
        if data.cache_dataset:
            self._read_rows = rows_from_cache(manifest, open_cache(manifest, cache_folder, data.num_workers))
        else:
            self._read_rows = rows_from_files(manifest, data.use_tf_native_loading)
        self._produce = trace_produce(route.data, voice_augmentation)

    def open_feed(
        self, start: Position, epochs: int | None = None, mean_over: Literal["step", "epoch"] = "step"
    ) -> Feed[Delivery]:
        """Batches from a position on; see `planned_batches`."""
        manifest, data = self._corpus.manifest, self._data

        def planned():
            return planned_batches(
                self._corpus.plan, manifest, start, self._seed, self._reference_samples, epochs, mean_over
            )

        waves = wave_batches(
            planned,
            self._read_rows,
            self._reference_samples,
            data.num_workers,
            data.buffer_size,
            self._route.data,
            data.prefetch_buffer_size,
        )
        delivered = deliveries(
            planned(), waves, self._route, self._produce, lambda plan, error: name_culprit(manifest, plan, error)
        )
        return Feed(delivered, data.prefetch_buffer_size)
