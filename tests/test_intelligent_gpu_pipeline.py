"""The whole data path: WAV -> upload -> log-mel on the data device.

On real GPUs where there are any: see `tests.two_devices`.
"""

import threading
import unittest
from contextlib import closing
from itertools import cycle, islice
from unittest.mock import Mock, patch

from tests import real_gpus  # noqa: F401 - before tests.two_devices

# isort: split

from tests.sine_corpus import librosa_log_mel
from tests.two_devices import DATA, MODEL

# isort: split

import numpy as np
import soundfile
import tensorflow as tf

from fakes.toy import shared_traces, traced_once
from myxtts.audio import mel as audio_mel
from myxtts.audio.format import HOP_SAMPLES, LOG_FLOOR, SAMPLE_RATE_HZ
from myxtts.base.progress import Position
from myxtts.batches.pipeline import Pipeline
from myxtts.batches.plan import Pass
from myxtts.devicefeed.audit import require_device
from myxtts.devicefeed.contract import check_batch
from myxtts.devicefeed.feed import Feed
from myxtts.devicefeed.producer import ProducedBatch, ReplicaFeed, produced_batches
from myxtts.devicefeed.routes import Route
from myxtts.run.description import describe_fill
from myxtts.tasks.tts.contract import TTS_FEATURES
from myxtts.tasks.tts.features import tts_extractor
from tests.devicefeed.feeds import TIMEOUT_S, ObservedSource, producers
from tests.pipeline_case import (
    PLAIN,
    ROUTE,
    THREE_PRODUCERS,
    TWO_PRODUCERS,
    PipelineCase,
    host,
    silence,
)
from tests.sine_corpus import frequency, pitch_of


class PipelineTest(PipelineCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with patch.object(
            audio_mel, "log_mel_of_frames", wraps=audio_mel.log_mel_of_frames
        ) as traced:
            options = {"seed": cls.SEED, "cache_folder": cls.folder / "cache"}
            pipeline = Pipeline(cls.corpus, [ROUTE], PLAIN, cls.SETTINGS, **options)
            cls.traced_before = traced.call_count
            with pipeline.open_feed(Pass(epochs=2)) as feed:
                cls.delivered = [produced_batch for (produced_batch,) in feed]
            cls.traced = traced.call_count
        cls.steps = cls.corpus.plan.steps_per_epoch
        cls.first_epoch, cls.second_epoch = (
            [batch for batch in cls.delivered if batch.tag.step.position.epoch == epoch]
            for epoch in (0, 1)
        )

    def delivered_from(self, start: Position) -> list[ProducedBatch]:
        return [batch for batch in self.delivered if batch.tag.step.position >= start]

    def test_an_epoch_has_each_utterance_exactly_once(self):
        for epoch in (self.first_epoch, self.second_epoch):
            rows = np.concatenate([batch.tag.rows for batch in epoch])
            self.assertEqual(sorted(rows.tolist()), list(range(13)))

    def test_every_batch_is_complete_on_the_data_device_and_has_its_own_seed(self):
        for produced in self.delivered:
            check_batch(produced.features, TTS_FEATURES, "producing")
            require_device(DATA, produced.features.items())
        seeds = {tuple(host(produced_batch)["seed"]) for produced_batch in self.delivered}
        self.assertEqual(len(seeds), len(self.delivered))

    def test_the_mel_of_each_utterance_matches_librosa_and_its_f0_is_its_frequency(self):
        for produced_batch in self.first_epoch:
            batch, rows = host(produced_batch), produced_batch.tag.rows
            columns = batch["mel"], batch["frames"], batch["f0_hz"]
            for row, mel, frames, hz in zip(rows, *columns, strict=False):
                wave, _ = soundfile.read(self.manifest.paths[row])
                expected = librosa_log_mel(wave)
                self.assertEqual(frames, len(expected))
                np.testing.assert_allclose(mel[:frames], expected, atol=1e-3)
                if pitch_of(row) <= 600.0:
                    np.testing.assert_allclose(hz[4 : frames - 4], pitch_of(row), rtol=0.005)

    def test_the_plan_of_a_batch_describes_its_content(self):
        for produced_batch in self.delivered:
            batch, planned = host(produced_batch), produced_batch.tag
            rows, real = planned.rows, len(planned.rows)
            frames = self.manifest.samples // HOP_SAMPLES
            half_second = np.minimum(frames[planned.arrays["reference_row"][:real]], 43)
            for name, expected in (
                *(("frames", frames[rows]), ("token_count", self.manifest.token_counts[rows])),
                ("reference_frames", half_second),
            ):
                np.testing.assert_array_equal(batch[name][:real], expected, name)
            np.testing.assert_array_equal(batch["seed"], planned.arrays["seed"])
            audio_s = self.manifest.samples[rows].sum() / SAMPLE_RATE_HZ
            self.assertAlmostEqual(planned.audio_s, audio_s)
            size, samples, tokens = self.corpus.plan.shape(planned.step.bucket)
            self.assertAlmostEqual(planned.padded_s, size * samples / SAMPLE_RATE_HZ)
            # So XLA compiles the alignment search once for each bucket.
            self.assertEqual(batch["mel"].shape, (size, samples // HOP_SAMPLES, 80))
            self.assertEqual(batch["tokens"].shape, (size, tokens))
            for row, ids in zip(rows, batch["tokens"], strict=False):
                tokens = self.manifest.tokens_of(row)
                np.testing.assert_array_equal(ids[: len(tokens)], tokens)
                self.assertFalse(ids[len(tokens) :].any())

    def test_rows_without_an_utterance_are_silent_with_length_0(self):
        short = [(d, host(d)) for d in self.delivered if len(d.tag.rows) < 3]
        self.assertTrue(short)
        for produced_batch, batch in short:
            empty = slice(len(produced_batch.tag.rows), None)
            for name in ("frames", "reference_frames", "token_count", "tokens", "f0_hz"):
                self.assertFalse(batch[name][empty].any(), name)
            for name in ("mel", "reference"):
                np.testing.assert_allclose(batch[name][empty], np.log(LOG_FLOOR), rtol=1e-6)

    def test_step_totals_are_the_frames_and_tokens_of_all_batches_of_the_step(self):
        steps = {}
        for produced_batch in self.delivered:
            steps.setdefault(produced_batch.tag.step.position, []).append(produced_batch)
        self.assertTrue(any(len(batches) == 2 for batches in steps.values()))
        for batches in steps.values():
            lasts = [d.tag.last for d in batches]
            self.assertEqual(lasts, [False] * (len(batches) - 1) + [True])
            self.assert_totals(batches)

    def assert_totals(self, batches):
        batches = list(map(host, batches))
        totals = tuple(sum(b[name].sum() for b in batches) for name in ("frames", "token_count"))
        found = {(float(b["step_frames"]), float(b["step_tokens"])) for b in batches}
        self.assertEqual(found, {totals})

    def test_epoch_totals_are_the_same_in_every_batch(self):
        self.assert_totals(self.epoch(mean_over="epoch"))

    def test_producing_is_traced_once_over_all_buckets_and_epochs(self):
        buckets = len({produced_batch.tag.step.bucket for produced_batch in self.delivered})
        self.assertEqual(buckets, 2)
        # The utterance and its reference, before any thread runs.
        self.assertEqual((self.traced_before, self.traced), (2, 2))

    def test_reading_options_change_no_bit(self):
        deep = {"num_workers": 1, "buffer_size": 20, "prefetch_buffer_size": 8}
        for settings in (
            {"num_workers": 4, "buffer_size": 1, "prefetch_buffer_size": 1},
            *(deep | {"use_tf_native_loading": False}, {"cache_dataset": True}),
        ):
            with self.subTest(**settings):
                self.assert_same(self.epoch(**settings), self.first_epoch)

    def test_vtlp_is_applied_only_if_the_extractor_has_it(self):
        settings = self.SETTINGS.model_copy(update={"vtlp": 0.2})
        arguments = {"seed": self.SEED, "cache_folder": self.folder / "cache"}
        with shared_traces():
            plain, warped = (
                Pipeline(self.corpus, [ROUTE], extractor, settings, **arguments)
                for extractor in (PLAIN, tts_extractor(0.2))
            )
        deliveries = []
        for pipeline in (plain, warped, warped):
            with pipeline.open_feed(Pass(epochs=1)) as feed:
                deliveries.append([produced_batch for (produced_batch,) in feed])
        # Only the extractor applies VTLP, not the setting.
        self.assert_same(deliveries[0], self.first_epoch)
        self.assert_same(deliveries[1], deliveries[2])
        for produced_batch, plain in zip(deliveries[1], self.first_epoch, strict=True):
            batch, expected = host(produced_batch), host(plain)
            for name in ("mel", "reference"):
                self.assertTrue((batch[name] != expected[name]).any(), name)
            for name in set(batch) - {"mel", "reference", "f0_hz"}:
                np.testing.assert_array_equal(batch[name], expected[name], err_msg=name)

    def test_starting_at_a_position_equals_skipping_to_it(self):
        for start in (Position(0, 2), Position(1, 0), Position(1, self.steps - 1)):
            with self.subTest(start=start):
                self.assert_same(self.epoch(start, epochs=2), self.delivered_from(start))

    def test_producers_that_take_turns_make_the_batches_of_one(self):
        for route in (TWO_PRODUCERS, THREE_PRODUCERS):
            received = self.epoch(epochs=2, route=route)
            self.assert_same(received, self.delivered)
            turns = list(islice(cycle(route.data_devices), len(received)))
            self.assertEqual([batch.times.producer for batch in received], turns)
            for batch, device in zip(received, turns, strict=True):
                require_device(device, batch.features.items())

    def test_producers_take_turns_from_any_position_also_if_some_have_no_batch(self):
        for start in (Position(0, 1), Position(1, self.steps - 1)):  # the last step has two batches
            received = self.epoch(start, epochs=2, route=THREE_PRODUCERS)
            self.assert_same(received, self.delivered_from(start))

    def test_feeds_of_several_producers_can_be_closed_at_any_batch(self):
        pipeline = self.pipeline(TWO_PRODUCERS)
        for taken in range(4):
            with pipeline.open_feed(Pass()) as feed:
                batches = [batch for _ in range(taken) for batch in next(feed)]
                self.assert_same(batches, self.first_epoch[:taken])
            self.assertEqual(producers(), [])

    def test_next_positions_traverse_the_epochs(self):
        ends = [batch.tag.step for batch in self.delivered if batch.tag.last]
        positions = [Position(epoch, step) for epoch in (0, 1) for step in range(self.steps)]
        self.assertEqual([step.position for step in ends], positions)
        self.assertEqual([step.next_position for step in ends[:-1]], positions[1:])
        self.assertEqual(ends[-1].next_position, Position(2, 0))

    def test_an_endless_feed_can_be_closed_and_opened_again(self):
        pipeline = self.pipeline()
        for _ in range(2):
            with pipeline.open_feed(Pass()) as feed:
                self.assert_same([*next(feed), *next(feed)], self.first_epoch[:2])

    def test_later_batches_are_produced_while_the_consumer_holds_one(self):
        produced, enough = [], threading.Event()
        produce_on_data = traced_once(DATA, PLAIN)

        def watched(waves):
            result = produce_on_data(waves)
            produced.append(result[0]["mel"].backing_device)
            if len(produced) == 4:
                enough.set()
            return result

        planned = [produced_batch.tag for produced_batch in self.first_epoch]
        batches = produced_batches(self.silent(planned), DATA, PLAIN, watched)
        with Feed(batches, depth=2) as feed:
            next(feed)
            # This one, two in the feed, and one in production.
            self.assertTrue(enough.wait(TIMEOUT_S))
        self.assertTrue(all(device.endswith(DATA[1:]) for device in produced), produced)

    def test_the_data_device_is_waited_for_only_if_asked(self):
        for options, waits in (({}, 0), ({"synchronize": True}, 2)):
            with shared_traces():
                arguments = {"seed": 5, "cache_folder": self.folder} | options
                pipeline = Pipeline(self.corpus, [ROUTE], PLAIN, self.SETTINGS, **arguments)
            producer, element = pipeline.producers[0], Mock()
            features = producer.produce(next(self.silent([self.first_epoch[0].tag]))[1])[0]
            producer.produce = Mock(return_value=(features, element))
            with closing(producer.replica_batches(Pass())) as batches:
                for _ in range(2):
                    next(batches)
            self.assertEqual(element.numpy.call_count, waits)

    def test_a_feed_keeps_as_many_batches_ready_as_the_setting_says(self):
        for depth in (1, 3):
            pipeline, source = self.pipeline(prefetch_buffer_size=depth), ObservedSource()
            produce = patch.object(pipeline.producers[0], "replica_batches", return_value=source)
            with produce, pipeline.open_feed(Pass()):
                self.assertTrue(source.wait_for(depth + 1))  # and the one that waits for a place
                self.assertFalse(source.wait_for(depth + 2, timeout_s=0.02))

    def test_the_log_says_how_many_batches_are_ready_where_the_wait_ended_first(self):
        for of_feeds, waited_s, limit_s, expected in (
            ([(3, 3)], 0.5, 2.0, "filled in 0.5 s"),
            ([(3, 3)], 2.0, 2.0, "filled in 2.0 s"),
            ([(0, 3)], 0.0, 0.0, "0 of 3 batches after 0.0 s (--model-start-delay)"),
            ([(2, 3)], 2.0, 2.0, "2 of 3 batches after 2.0 s (--model-start-delay)"),
            ([(3, 3), (1, 3)], 2.0, 2.0, "4 of 6 batches after 2.0 s (--model-start-delay)"),
            # A stop was requested, or the source has failed.
            ([(1, 3)], 0.5, 2.0, "1 of 3 batches after 0.5 s"),
        ):
            feeds = [[Mock(fill=fill)] for fill in of_feeds]
            routes = [Route(str(index), str(index)) for index in range(len(feeds))]
            feed = ReplicaFeed(feeds, [[index] for index in range(len(feeds))], routes)
            self.assertEqual(describe_fill(*feed.fill, waited_s, limit_s), expected)

    def test_every_operation_that_produces_features_is_bound_to_the_device(self):
        for device, extractor in ((DATA, tts_extractor(0.2)), (MODEL, PLAIN)):
            operations = traced_once(device, extractor).graph.get_operations()
            self.assertIn("RFFT", {operation.type for operation in operations})
            # arguments, results.
            at = {op.device for op in operations if op.type not in ("Placeholder", "Identity")}
            self.assertEqual(at, {f"/device:{device[1:]}"})


class SlowFilesTest(PipelineCase):
    def test_batches_keep_their_order_if_the_first_is_read_last(self):
        planned = list(self.planned())
        others_read = threading.Event()
        read = []

        def slow_at_first(rows, padded):
            if np.array_equal(rows[:2], planned[0].arrays["row"][:2]):
                others_read.wait(TIMEOUT_S)
            read.append(rows.tolist())
            if len(read) >= 2:
                others_read.set()
            return np.full((len(rows), padded), rows[0], np.int16)

        def read_rows(rows, starts, samples, padded):
            if isinstance(padded, int):  # references
                return silence(rows, starts, samples, padded)
            read = tf.numpy_function(slow_at_first, [rows, padded], tf.int16)
            return tf.ensure_shape(read, [None, None])

        reader = self.reader(read_rows, num_workers=3, buffer_size=2, prefetch_buffer_size=3)
        pairs = reader.read(planned, DATA)
        received = [(batch, int(waves["pcm"][0, 0])) for batch, waves in pairs]
        self.assertNotEqual(read[0], planned[0].arrays["row"].tolist())
        self.assertEqual(received, [(batch, int(batch.rows[0])) for batch in planned])

    def test_the_plan_is_read_as_far_ahead_as_both_buffers_are_deep(self):
        planned = list(self.planned())
        for host_batches, uploaded in ((1, 1), (4, 1), (1, 3)):
            with self.subTest(host_batches=host_batches, uploaded=uploaded):
                source = ObservedSource()
                depths = {"buffer_size": host_batches, "prefetch_buffer_size": uploaded}
                endless = (planned[number % len(planned)] for number in source)
                reader = self.reader(silence, num_workers=1, **depths)
                with closing(reader.read(endless, DATA)) as pairs:
                    next(pairs)
                    # With the one that was taken and the one being read.
                    ahead = 2 + host_batches + uploaded
                    self.assertTrue(source.wait_for(ahead))
                    self.assertFalse(source.wait_for(ahead + 1, timeout_s=0.05))

    def test_the_plan_is_iterated_once(self):
        planned = self.planned(2)
        positions = [batch.step.position for batch, _ in self.reader(silence).read(planned, DATA)]
        steps = range(self.corpus.plan.steps_per_epoch)
        expected = [Position(epoch, step) for epoch in (0, 1) for step in steps]
        self.assertEqual(sorted(set(positions)), expected)
        self.assertIsNone(next(planned, None))


class ReferenceTest(PipelineCase):
    """References of a quarter of a second from longer utterances, at random positions."""

    SECONDS = tuple(0.6 + 0.01 * i for i in range(9))

    def test_a_reference_is_a_random_segment_of_another_utterance_of_the_speaker(self):
        speaker = self.manifest.speaker
        starts = []
        for plan in self.planned(epochs=30, reference_samples=5632):
            references, start, samples = (
                plan.arrays[f"reference_{name}"][: len(plan.rows)]
                for name in ("row", "start", "samples")
            )
            np.testing.assert_array_equal(speaker[references], speaker[plan.rows])
            self.assertFalse(np.any(references == plan.rows))
            np.testing.assert_array_equal(samples, 5632)
            latest = self.manifest.samples[references] - 5632
            self.assertTrue(np.all((start >= 0) & (start <= latest)))
            starts.extend(start / latest)
        self.assertGreater(len(set(starts)), 200)  # of 270
        self.assertAlmostEqual(float(np.mean(starts)), 0.5, delta=0.06)  # standard deviation 0.018

    def test_the_planned_reference_is_read(self):
        pipeline = self.pipeline(reference_seconds=0.5)
        with pipeline.open_feed(Pass(epochs=1)) as feed:
            for ((planned, batch, _),) in feed:
                for i in range(len(planned.rows)):
                    row = planned.arrays["reference_row"][i]
                    begin, end = planned.arrays["reference_start"][i] + np.array([0, 11_008])
                    wave, _ = soundfile.read(self.manifest.paths[row])
                    self.assertAlmostEqual(frequency(wave[begin:end]), pitch_of(row), delta=2.0)
                    expected = librosa_log_mel(wave[begin:end])
                    np.testing.assert_allclose(batch["reference"][i], expected, atol=1e-3)


if __name__ == "__main__":
    unittest.main()
