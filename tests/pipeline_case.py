"""A corpus of sinusoids for tests of the data path."""

import unittest
from collections.abc import Iterator

from tests.two_devices import DATA, MODEL, TWO

# isort: split

import numpy as np
import tensorflow as tf

from fakes.toy import shared_traces
from myxtts.base.progress import Position
from myxtts.batches.contract import TTS_INPUTS
from myxtts.batches.pipeline import Pipeline
from myxtts.batches.plan import Pass, PlannedBatch, planned_batches
from myxtts.batches.reading import ReadBatches, Reader, ReadRows
from myxtts.config.schema import DataConfig
from myxtts.devicefeed.producer import ProducedBatch
from myxtts.devicefeed.routes import Route
from myxtts.tasks.tts.features import tts_extractor
from tests.devicefeed.feeds import producers
from tests.fixtures import temporary_folder
from tests.sine_corpus import planned_corpus, write_corpus

ROUTE = TWO.routes[0]
TWO_PRODUCERS, THREE_PRODUCERS = (
    Route(DATA, MODEL, further) for further in ((MODEL,), (MODEL, DATA))
)
PLAIN = tts_extractor()
BEGINNING = Position()


def host(produced: ProducedBatch) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in produced.features.items()}


class PipelineCase(unittest.TestCase):
    """A corpus of 13 sinusoids by three speakers: two buckets, batches of 3, two batches a step."""

    SETTINGS = DataConfig(batch_size=3, buckets=2, reference_seconds=0.5)
    SECONDS = tuple(0.3 + 0.05 * i for i in range(13))
    SEED = 5

    @classmethod
    def setUpClass(cls):
        cls.folder = temporary_folder(cls.addClassCleanup, "pipeline ")
        cls.manifest = write_corpus(cls.folder / "corpus", cls.SECONDS, speakers=3)
        cls.corpus = planned_corpus(cls.manifest, cls.SETTINGS, cls.SEED, accumulation=2)

    def tearDown(self):
        self.assertEqual(producers(), [])

    def pipeline(self, route: Route = ROUTE, **settings) -> Pipeline:
        data, cache = self.SETTINGS.model_copy(update=settings), self.folder / "cache"
        with shared_traces():
            return Pipeline(self.corpus, [route], PLAIN, data, seed=self.SEED, cache_folder=cache)

    @classmethod
    def planned(cls, epochs: int = 1, reference_samples: int = 11_008) -> Iterator[PlannedBatch]:
        numbers = {"seed": cls.SEED, "reference_samples": reference_samples}
        return planned_batches(cls.corpus.plan, cls.manifest, Pass(epochs=epochs), **numbers)

    def reader(self, read_rows: ReadRows, **settings) -> Reader:
        data = self.SETTINGS.model_copy(update=settings)
        return Reader(self.manifest, TTS_INPUTS, 11_008, data, read_rows)

    def silent(self, planned: list[PlannedBatch], device: str = DATA) -> ReadBatches:
        """Return planned batches with TTS_INPUTS of silence on a device."""
        return self.reader(silence).read(planned, device)

    def epoch(
        self, start=BEGINNING, epochs=1, mean_over="step", route=ROUTE, **settings
    ) -> list[ProducedBatch]:
        with self.pipeline(route, **settings).open_feed(Pass(start, epochs, mean_over)) as feed:
            return [produced_batch for (produced_batch,) in feed]

    def assert_same(self, received: list[ProducedBatch], expected: list[ProducedBatch]):
        self.assertEqual(len(received), len(expected))
        for produced_batch, expected_batch in zip(received, expected, strict=True):
            planned, expected_plan = produced_batch.tag, expected_batch.tag
            self.assertEqual(planned.step[:2], expected_plan.step[:2])
            self.assertEqual(planned.last, expected_plan.last)
            expected_arrays = host(expected_batch)
            for name, array in host(produced_batch).items():
                np.testing.assert_array_equal(array, expected_arrays[name], name, strict=True)


def silence(rows, starts, samples, padded):
    return tf.zeros([tf.size(rows), padded], tf.int16)
