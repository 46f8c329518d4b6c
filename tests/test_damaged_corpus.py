"""Files damaged after the manifest was made, and unusual corpora, through the data path."""

import itertools
import os
import shutil
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path

from tests import two_devices  # noqa: F401 - before TensorFlow starts

# isort: split

import numpy as np
import soundfile

from fakes.toy import shared_traces
from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.base.errors import DataError
from myxtts.batches.pipeline import Pipeline
from myxtts.batches.plan import Pass, PlannedBatch
from myxtts.config.schema import DataConfig
from myxtts.devicefeed.producer import ProducedBatch
from myxtts.devicefeed.routes import Route
from tests.pipeline_case import PLAIN, ROUTE, THREE_PRODUCERS, TWO_PRODUCERS, PipelineCase, host
from tests.sine_corpus import planned_corpus, write_corpus


def rows_of(planned: PlannedBatch) -> set[int]:
    """Return the utterances and references of a batch."""
    real = len(planned.rows)
    return {*planned.rows.tolist(), *planned.arrays["reference_row"][:real].tolist()}


class DamagedCorpusTest(PipelineCase):
    """A file that changes after the manifest was made is named in an error at its batch."""

    def assert_named_at_its_batch(
        self, change: Callable[[Path], object], reason: str, route: Route = ROUTE, **settings
    ):
        row = self.latest
        path = Path(self.manifest.paths[row])
        pipeline = self.pipeline(route, **settings)
        planned = list(self.planned())
        users = [row in rows for rows in map(rows_of, planned)]
        content = path.read_bytes()
        change(path)
        delivered = []
        named = self.assertRaisesRegex(DataError, reason)
        try:
            with pipeline.open_feed(Pass(epochs=1)) as feed, named as raised:
                delivered.extend(feed)
        finally:
            path.write_bytes(content)
        self.assertEqual(len(delivered), users.index(True))
        step = planned[users.index(True)].step.position.step + 1
        self.assertIn(f"utterance 'u{row}' (epoch 1, step {step}): {path}", str(raised.exception))

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        seen = list(map(rows_of, cls.planned()))
        cls.latest = max(range(13), key=lambda row: [row in batch for batch in seen].index(True))

    def test_a_missing_file_is_named_whoever_makes_its_batch(self):
        for route in (ROUTE, TWO_PRODUCERS, THREE_PRODUCERS):
            self.assert_named_at_its_batch(os.remove, "No such file", route)

    def test_a_missing_file_is_named_by_soundfile(self):
        self.assert_named_at_its_batch(os.remove, "No such file", use_tf_native_loading=False)

    def test_a_truncated_file_is_named(self):
        message = "had [0-9]+ when the manifest was made"
        self.assert_named_at_its_batch(lambda path: os.truncate(path, 5_000), message)

    def test_a_file_of_another_length_is_named(self):
        for native, samples in itertools.product((True, False), (7_000, 70_000)):
            self.assert_named_at_its_batch(
                lambda path, n=samples: soundfile.write(path, np.zeros(n), SAMPLE_RATE_HZ),
                f"has {samples} samples at 22050 Hz, but had",
                use_tf_native_loading=native,
            )

    def test_a_file_of_another_format_is_named(self):
        for channels, rate_hz, subtype, reason in (
            (2, SAMPLE_RATE_HZ, "PCM_16", "was 16-bit mono"),
            (1, 44_100, "PCM_16", "samples at 22050 Hz, but had"),
            (1, SAMPLE_RATE_HZ, "PCM_24", "was 16-bit mono"),
        ):

            def change(path, channels=channels, rate_hz=rate_hz, subtype=subtype):
                silence = np.zeros((soundfile.info(path).frames, channels))
                soundfile.write(path, silence, rate_hz, subtype=subtype)

            self.assert_named_at_its_batch(change, reason)


class UnusualCorpusTest(unittest.TestCase):
    """Each corpus passes through the pipeline completely, once."""

    def delivered(
        self, seconds, suffixes=(".wav",), speakers=1, name="corpus", **settings
    ) -> list[ProducedBatch]:
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        data = DataConfig(**{"batch_size": 2, "buckets": 3, "reference_seconds": 0.5} | settings)
        corpus = planned_corpus(write_corpus(folder / name, seconds, speakers, suffixes), data)
        with shared_traces():
            pipeline = Pipeline(corpus, [ROUTE], PLAIN, data, seed=0, cache_folder=folder)
        with pipeline.open_feed(Pass(epochs=1)) as feed:
            delivered = [produced_batch for (produced_batch,) in feed]
        rows = np.concatenate([produced_batch.tag.rows for produced_batch in delivered])
        self.assertEqual(sorted(rows.tolist()), list(range(len(seconds))))
        for planned, batch, _ in delivered:
            mel = batch["mel"].numpy()
            columns = planned.rows, batch["frames"].numpy(), mel
            for row, frames, spectrogram in zip(*columns, strict=False):
                self.assertEqual(frames, round(seconds[row] * SAMPLE_RATE_HZ) // HOP_SAMPLES)
                # The tone is audible in every frame.
                self.assertGreater(spectrogram[:frames].max(axis=1).min(), -3.0)
        return delivered

    def test_a_single_utterance_is_its_own_reference(self):
        (produced_batch,) = self.delivered([0.4])
        batch = host(produced_batch)
        self.assertEqual(batch["frames"].tolist(), [34])  # no more rows than the corpus has
        np.testing.assert_array_equal(batch["reference"][0, :34], batch["mel"][0, :34])

    def test_very_short_and_very_long_utterances_are_read(self):
        delivered = self.delivered(
            [0.06, 0.3, 20.0, 0.31], speakers=2, batch_seconds=1.0, reference_seconds=30.0
        )
        # 30 s in whole frames.
        self.assertEqual({d.features["reference"].shape[1] for d in delivered}, {2583})
        # 20 s.
        actual = max(int(d.features["reference_frames"].numpy().max()) for d in delivered)
        self.assertEqual(actual, 1722)

    def test_paths_with_spaces_and_letters_of_any_script_are_read(self):
        suffixes = "  ა سلام ü %s.wav", " {0}'\".wav"
        self.delivered([0.3, 0.4], suffixes, name="der Körper\t日本")

    def test_a_path_that_is_not_utf_8_is_read(self):
        self.delivered([0.3], name=os.fsdecode(b"caf\xe9"))
