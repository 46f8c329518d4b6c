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
from myxtts.audio.format import HOP_SAMPLES, LOG_FLOOR, SAMPLE_RATE_HZ, frame_count
from myxtts.batch import TTS_FEATURES, check_batch
from myxtts.data import features
from myxtts.data.batch_plan import Pass, Position, planned_batches
from myxtts.data.features import tts_extractor
from myxtts.data.feed import Feed
from myxtts.data.pipeline import Pipeline, ReplicaFeed, produced_batches
from myxtts.errors import PlacementError
from myxtts.placement.audit import require_device
from tests.feeds import TIMEOUT_S, ObservedSource, producers
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
        with patch.object(features, "log_mel", wraps=features.log_mel) as traced:
            cache = cls.folder / "cache"
            pipeline = Pipeline(
                cls.corpus, [ROUTE], PLAIN, cls.SETTINGS, seed=cls.SEED, cache_folder=cache
            )
            cls.traced_before = traced.call_count
            with pipeline.open_feed(Pass(epochs=2)) as feed:
                cls.delivered = [produced_batch for (produced_batch,) in feed]
            cls.traced = traced.call_count
        cls.steps = cls.corpus.plan.steps_per_epoch
        cls.first_epoch = [
            produced_batch
            for produced_batch in cls.delivered
            if produced_batch.planned.step.position.epoch == 0
        ]

    def test_an_epoch_has_each_utterance_exactly_once(self):
        for epoch in (0, 1):
            rows = [
                d.planned.rows for d in self.delivered if d.planned.step.position.epoch == epoch
            ]
            self.assertEqual(sorted(np.concatenate(rows).tolist()), list(range(13)))

    def test_every_batch_is_complete_and_on_the_data_device(self):
        for produced in self.delivered:
            check_batch(produced.features, TTS_FEATURES, "producing")
            require_device(DATA, produced.features.items())

    def test_the_mel_of_each_utterance_matches_librosa(self):
        for produced_batch in self.first_epoch:
            batch = host(produced_batch)
            for row, mel, frames in zip(
                produced_batch.planned.rows, batch["mel"], batch["frames"], strict=False
            ):
                wave, _ = soundfile.read(self.manifest.paths[row])
                expected = librosa_log_mel(wave)
                self.assertEqual(frames, len(expected))
                np.testing.assert_allclose(mel[:frames], expected, atol=1e-3)

    def test_the_plan_of_a_batch_describes_its_content(self):
        for planned, batch, _ in self.delivered:
            batch = {name: tensor.numpy() for name, tensor in batch.items()}
            rows, real = planned.rows, len(planned.rows)
            np.testing.assert_array_equal(
                batch["frames"][:real], self.manifest.samples[rows] // HOP_SAMPLES
            )
            np.testing.assert_array_equal(
                batch["token_count"][:real], self.manifest.token_counts[rows]
            )
            np.testing.assert_array_equal(batch["seed"], planned.arrays["seed"])
            references = self.manifest.samples[planned.arrays["reference_row"][:real]]
            half_second = 43 * HOP_SAMPLES  # in whole frames
            np.testing.assert_array_equal(
                batch["reference_frames"][:real], np.minimum(references, half_second) // HOP_SAMPLES
            )
            audio_s = planned.audio_s
            self.assertAlmostEqual(audio_s, self.manifest.samples[rows].sum() / SAMPLE_RATE_HZ)
            size, samples, tokens = self.corpus.plan.shape(planned.step.bucket)
            self.assertAlmostEqual(planned.padded_s, size * samples / SAMPLE_RATE_HZ)
            self.assertEqual(batch["mel"].shape, (size, samples // HOP_SAMPLES, 80))
            self.assertEqual(batch["tokens"].shape, (size, tokens))
            for row, ids in zip(rows, batch["tokens"], strict=False):
                begin, end = self.manifest.token_start[row : row + 2]
                np.testing.assert_array_equal(ids[: end - begin], self.manifest.tokens[begin:end])
                self.assertFalse(ids[end - begin :].any())

    def test_rows_without_an_utterance_are_silent_with_length_0(self):
        short = [(d, host(d)) for d in self.delivered if len(d.planned.rows) < 3]
        self.assertTrue(short)
        for produced_batch, batch in short:
            empty = slice(len(produced_batch.planned.rows), None)
            for name in ("frames", "reference_frames", "token_count", "tokens", "f0_hz"):
                self.assertFalse(batch[name][empty].any(), name)
            for name in ("mel", "reference"):
                np.testing.assert_allclose(batch[name][empty], np.log(LOG_FLOOR), rtol=1e-6)

    def test_step_totals_are_the_frames_and_tokens_of_all_batches_of_the_step(self):
        steps = {}
        for produced_batch in self.delivered:
            steps.setdefault(produced_batch.planned.step.position, []).append(produced_batch)
        self.assertTrue(any(len(batches) == 2 for batches in steps.values()))
        for batches in steps.values():
            lasts = [d.planned.last for d in batches]
            self.assertEqual(lasts, [False] * (len(batches) - 1) + [True])
            frames, tokens = (
                sum(host(d)[name].sum() for d in batches) for name in ("frames", "token_count")
            )
            for batch in map(host, batches):
                self.assertEqual((batch["step_frames"], batch["step_tokens"]), (frames, tokens))

    def test_epoch_totals_are_the_same_in_every_batch(self):
        delivered = [host(produced_batch) for produced_batch in self.epoch(mean_over="epoch")]
        frames, tokens = (
            sum(batch[name].sum() for batch in delivered) for name in ("frames", "token_count")
        )
        actual = {(float(b["step_frames"]), float(b["step_tokens"])) for b in delivered}
        self.assertEqual(actual, {(frames, tokens)})

    def test_each_batch_has_its_own_seed(self):
        seeds = {tuple(host(produced_batch)["seed"]) for produced_batch in self.delivered}
        self.assertEqual(len(seeds), len(self.delivered))

    def test_producing_is_traced_once_over_all_buckets_and_epochs(self):
        buckets = len({produced_batch.planned.step.bucket for produced_batch in self.delivered})
        self.assertEqual(buckets, 2)
        # The utterance and its reference, before any thread runs.
        self.assertEqual((self.traced_before, self.traced), (2, 2))

    def test_every_batch_of_a_bucket_has_the_shape_in_the_plan(self):
        """So XLA compiles the alignment search once for each bucket."""
        for produced_batch in self.delivered:
            rows, samples, tokens = self.corpus.plan.shape(produced_batch.planned.step.bucket)
            batch = host(produced_batch)
            actual = batch["mel"].shape[:2] + batch["tokens"].shape
            self.assertEqual(actual, (rows, frame_count(samples), rows, tokens))

    def test_reading_options_change_no_bit(self):
        for settings in (
            {"num_workers": 4, "buffer_size": 1, "prefetch_buffer_size": 1},
            {
                "num_workers": 1,
                "buffer_size": 20,
                "prefetch_buffer_size": 8,
                "use_tf_native_loading": False,
            },
            {"cache_dataset": True},
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
            self.assertTrue(
                (batch["mel"] != expected["mel"]).any()
                and (batch["reference"] != expected["reference"]).any()
            )
            for name in set(batch) - {"mel", "reference", "f0_hz"}:
                np.testing.assert_array_equal(batch[name], expected[name], err_msg=name)

    def test_the_f0_of_each_utterance_is_its_frequency(self):
        for produced_batch in self.first_epoch:
            batch = host(produced_batch)
            for row, hz, frames in zip(
                produced_batch.planned.rows, batch["f0_hz"], batch["frames"], strict=False
            ):
                if pitch_of(row) <= 600.0:
                    np.testing.assert_allclose(hz[4 : frames - 4], pitch_of(row), rtol=0.005)

    def test_starting_at_a_position_equals_skipping_to_it(self):
        for start in (Position(0, 2), Position(1, 0), Position(1, self.steps - 1)):
            with self.subTest(start=start):
                expected = [
                    produced_batch
                    for produced_batch in self.delivered
                    if produced_batch.planned.step.position >= start
                ]
                self.assert_same(self.epoch(start, epochs=2), expected)

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
            expected = [batch for batch in self.delivered if batch.planned.step.position >= start]
            self.assert_same(self.epoch(start, epochs=2, route=THREE_PRODUCERS), expected)

    def test_feeds_of_several_producers_can_be_closed_at_any_batch(self):
        pipeline = self.pipeline(TWO_PRODUCERS)
        for taken in range(4):
            with pipeline.open_feed(Pass()) as feed:
                self.assert_same(
                    [batch for _ in range(taken) for batch in next(feed)], self.first_epoch[:taken]
                )
            self.assertEqual(producers(), [])

    def test_next_positions_traverse_the_epochs(self):
        ends = [
            produced_batch.planned.step
            for produced_batch in self.delivered
            if produced_batch.planned.last
        ]
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

        planned = [produced_batch.planned for produced_batch in self.first_epoch]
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
            produce = producer.produce
            producer.produce = lambda waves, produce=produce, element=element: (
                produce(waves)[0],
                element,
            )
            with closing(producer.replica_batches(Pass())) as batches:
                for _ in range(2):
                    next(batches)
            self.assertEqual(element.numpy.call_count, waits)

    def test_a_feed_keeps_as_many_batches_ready_as_the_setting_says(self):
        for depth in (1, 3):
            pipeline, source = self.pipeline(prefetch_buffer_size=depth), ObservedSource()
            produce = patch.object(
                pipeline.producers[0], "replica_batches", lambda *_, source=source: source
            )
            with produce, pipeline.open_feed(Pass()):
                self.assertTrue(source.wait_for(depth + 1))  # and the one that waits for a place
                self.assertFalse(source.wait_for(depth + 2, timeout_s=0.02))

    def test_the_wait_for_all_feeds_together_is_at_most_the_timeout(self):
        timeouts_s = []

        class Waiting:
            def wait_until_full(self, timeout_s, is_stopped):
                timeouts_s.append(timeout_s)
                return 2.0

        actual = ReplicaFeed([[Waiting()], [Waiting()]], [[0], [1]]).wait_until_full(5.0)
        self.assertEqual(actual, 4.0)
        self.assertEqual(timeouts_s, [5.0, 3.0])

    def test_every_operation_that_produces_features_is_bound_to_the_device(self):
        for device, extractor in ((DATA, tts_extractor(0.2)), (MODEL, PLAIN)):
            operations = traced_once(device, extractor).graph.get_operations()
            self.assertIn("RFFT", {operation.type for operation in operations})
            # arguments, results.
            at = {op.device for op in operations if op.type not in ("Placeholder", "Identity")}
            self.assertEqual(at, {f"/device:{device[1:]}"})

    def test_a_batch_on_the_wrong_device_is_rejected(self):
        planned = [self.first_epoch[0].planned]
        batches = produced_batches(
            self.silent(planned, MODEL), DATA, PLAIN, traced_once(DATA, PLAIN)
        )
        with self.assertRaisesRegex(PlacementError, f"must be on {DATA}, but found .* on {MODEL}"):
            next(batches)

    def test_a_batch_that_breaks_its_contract_is_rejected(self):
        produce = traced_once(DATA, PLAIN)

        def without_f0(waves):
            features, element = produce(waves)
            features = {name: value for name, value in features.items() if name != "f0_hz"}
            return features, element

        batches = produced_batches(
            self.silent([self.first_epoch[0].planned]), DATA, PLAIN, without_f0
        )
        with self.assertRaisesRegex(TypeError, "^batch after producing: f0_hz is missing$"):
            next(batches)


class SlowFilesTest(PipelineCase):
    def test_batches_keep_their_order_if_the_first_is_read_last(self):
        planned = list(
            planned_batches(
                self.corpus.plan,
                self.manifest,
                Pass(epochs=1),
                seed=self.SEED,
                reference_samples=11_008,
            )
        )
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
            return tf.ensure_shape(
                tf.numpy_function(slow_at_first, [rows, padded], tf.int16), [None, None]
            )

        pairs = self.reader(read_rows, num_workers=3, buffer_size=2, prefetch_buffer_size=3).read(
            planned, DATA
        )
        received = [(batch, int(waves["pcm"][0, 0])) for batch, waves in pairs]
        self.assertNotEqual(read[0], planned[0].arrays["row"].tolist())
        self.assertEqual(received, [(batch, int(batch.rows[0])) for batch in planned])

    def test_the_plan_is_read_as_far_ahead_as_both_buffers_are_deep(self):
        planned = list(self.planned())
        for host_batches, uploaded in ((1, 1), (4, 1), (1, 3)):
            with self.subTest(host_batches=host_batches, uploaded=uploaded):
                source = ObservedSource()
                reader = self.reader(
                    silence, num_workers=1, buffer_size=host_batches, prefetch_buffer_size=uploaded
                )
                with closing(
                    reader.read((planned[number % len(planned)] for number in source), DATA)
                ) as pairs:
                    next(pairs)
                    # With the one that was taken and the one being read.
                    ahead = 2 + host_batches + uploaded
                    self.assertTrue(source.wait_for(ahead))
                    self.assertFalse(source.wait_for(ahead + 1, timeout_s=0.05))

    def test_the_plan_is_iterated_once(self):
        planned = self.planned(2)
        positions = [batch.step.position for batch, _ in self.reader(silence).read(planned, DATA)]
        self.assertEqual(
            sorted(set(positions)),
            [Position(e, s) for e in (0, 1) for s in range(self.corpus.plan.steps_per_epoch)],
        )
        self.assertIsNone(next(planned, None))


class ReferenceTest(PipelineCase):
    """References of a quarter of a second from longer utterances, at random positions."""

    SECONDS = tuple(0.6 + 0.01 * i for i in range(9))

    def test_a_reference_is_a_random_segment_of_another_utterance_of_the_speaker(self):
        planned = list(
            planned_batches(
                self.corpus.plan,
                self.manifest,
                Pass(epochs=30),
                seed=self.SEED,
                reference_samples=5632,
            )
        )
        starts = []
        for plan in planned:
            real = len(plan.rows)
            references, start = (
                plan.arrays["reference_row"][:real],
                plan.arrays["reference_start"][:real],
            )
            np.testing.assert_array_equal(
                self.manifest.speaker[references], self.manifest.speaker[plan.rows]
            )
            self.assertFalse(np.any(references == plan.rows))
            np.testing.assert_array_equal(plan.arrays["reference_samples"][:real], 5632)
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
                    np.testing.assert_allclose(
                        batch["reference"][i], librosa_log_mel(wave[begin:end]), atol=1e-3
                    )


if __name__ == "__main__":
    unittest.main()
