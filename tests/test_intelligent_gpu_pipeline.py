"""The feed and the whole data path: WAV -> upload -> log-mel on the data device.

On real GPUs where there are any: see `tests.two_devices`.
"""

import gc
import os
import shutil
import tempfile
import threading
import unittest
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from unittest.mock import Mock, patch

from tests import real_gpus  # noqa: F401 - before tests.two_devices

# isort: split

from tests.two_devices import DATA, MODEL, TWO

# isort: split

import librosa
import numpy as np
import soundfile
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, LOG_FLOOR, SAMPLE_RATE_HZ, frame_count
from myxtts.batch import TTS_FEATURES, TTS_INPUTS, check_batch
from myxtts.config.schema import DataConfig
from myxtts.data import features, producer
from myxtts.data.features import tts_extractor
from myxtts.data.feed import Feed
from myxtts.data.pipeline import Pipeline, ReplicaFeed
from myxtts.data.plan_iterator import PlannedBatch, Position, planned_batches
from myxtts.data.producer import ProducedBatch, ProduceFunction, produced_batches, trace_produce
from myxtts.data.readers.base import ReadBatches, ReadRows
from myxtts.data.readers.local import LocalReader
from myxtts.errors import DataError, PlacementError
from myxtts.placement.audit import require_device
from myxtts.placement.routes import Route
from tests.sine_corpus import frequency, pitch_of, planned_corpus, write_corpus

TIMEOUT_S = 30.0  # for operations that take milliseconds or block for ever
ROUTE = TWO.routes[0]
TWO_PRODUCERS, THREE_PRODUCERS = (Route(DATA, MODEL, further) for further in ((MODEL,), (MODEL, DATA)))
PLAIN = tts_extractor()
BEGINNING = Position()


def within_timeout(function: Callable):
    """Return or raise what a function returns or raises; fail if it does not end."""
    outcome = []

    def call():
        try:
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    if not outcome:
        raise AssertionError(f"the function has not ended after {TIMEOUT_S} s")
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def producers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "myxtts-producer"]


class ObservedSource:
    """The numbers from 0, endless or up to `count`, with how many were made and which thread closed them."""

    def __init__(self, count: int | None = None):
        self.made, self.closed_in, self.changed = 0, None, threading.Condition()
        self._count = count
        self._items = self._make()  # a reference here: only the consumer closes the generator

    def __iter__(self) -> Iterator[int]:
        return self._items

    def _make(self) -> Iterator[int]:
        try:
            while self.made != self._count:
                with self.changed:
                    self.made += 1
                    self.changed.notify_all()
                yield self.made - 1
        finally:
            self.closed_in = threading.current_thread().name

    def wait_for(self, made: int, timeout_s: float = TIMEOUT_S) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.made >= made, timeout_s)


class FeedTest(unittest.TestCase):
    def tearDown(self):
        self.assertEqual(producers(), [], "the thread of a feed is still running")

    def test_items_come_in_order_and_are_the_same_at_any_depth(self):
        for depth in (1, 2, 8, 100):
            with Feed(ObservedSource(50), depth) as feed:
                self.assertEqual(list(feed), list(range(50)))

    def test_the_producer_runs_at_most_depth_plus_one_items_ahead(self):
        for depth in (1, 3):
            source = ObservedSource()
            with Feed(source, depth) as feed:
                for taken in range(5):
                    self.assertTrue(source.wait_for(taken + depth + 1))
                    self.assertFalse(source.wait_for(taken + depth + 2, timeout_s=0.02))
                    self.assertEqual(next(feed), taken)

    def test_the_next_item_is_produced_while_the_consumer_uses_the_current_one(self):
        barrier = threading.Barrier(2, timeout=TIMEOUT_S)  # breaks unless both stages run at the same time

        def emulated_producer():
            yield 0
            for item in range(1, 10):
                barrier.wait()
                yield item

        with Feed(emulated_producer(), depth=1) as feed:
            for item in feed:
                if item < 9:
                    barrier.wait()

    def test_error_in_producer_is_raised_at_its_batch(self):
        def failing():
            yield from range(3)
            raise ValueError("batch 3 is bad")

        for depth in (1, 2, 8):
            with Feed(failing(), depth) as feed:
                self.assertEqual([next(feed) for _ in range(3)], [0, 1, 2])
                with self.assertRaisesRegex(ValueError, "batch 3 is bad"):
                    next(feed)
                self.assertEqual(list(feed), [])

    def test_no_error_in_the_producer_thread_blocks_the_consumer(self):
        class Unopened:
            def __iter__(self):
                raise OSError("cannot be opened")

        def exiting():
            yield from range(2)
            raise SystemExit(3)

        def badly_closed():
            try:
                yield 1
            finally:
                raise OSError("cannot be closed")

        for batches, error in (
            (Unopened(), OSError),
            (7, TypeError),
            (exiting(), SystemExit),
            (badly_closed(), OSError),
        ):
            with self.subTest(batches=batches), Feed(batches, 1) as feed, self.assertRaises(error):
                within_timeout(lambda feed=feed: list(feed))

    def test_an_error_in_the_consumer_leaves_the_with_block_unchanged(self):
        with self.assertRaisesRegex(ZeroDivisionError, "step"), Feed(ObservedSource(), 2):
            raise ZeroDivisionError("step")

    def test_closing_releases_a_producer_that_is_blocked_on_a_full_feed(self):
        for depth in (1, 3):
            source = ObservedSource()
            feed = Feed(source, depth).__enter__()
            self.assertTrue(source.wait_for(depth + 1))
            within_timeout(lambda feed=feed: feed.__exit__(None, None, None))
            self.assertEqual(producers(), [])
            self.assertLessEqual(source.made, depth + 2)

    def test_closing_at_any_item_closes_the_iterable_in_the_feeds_own_thread(self):
        for items in range(5):
            source = ObservedSource(4)
            with Feed(source, 2) as feed:
                self.assertEqual(list(islice(feed, items)), list(range(items)))
            self.assertEqual(source.closed_in, "myxtts-producer")

    def test_closing_waits_for_the_item_in_production(self):
        begun, may_end, closed = threading.Event(), threading.Event(), threading.Event()

        def slow():
            begun.set()
            may_end.wait(TIMEOUT_S)
            yield 0

        feed = Feed(slow(), 1)
        feed.__enter__()
        begun.wait(TIMEOUT_S)
        closing = threading.Thread(target=lambda: (feed.__exit__(None, None, None), closed.set()))
        closing.start()
        self.assertTrue(producers() and not closed.is_set())
        may_end.set()
        closing.join(TIMEOUT_S)
        self.assertTrue(closed.is_set())

    def test_closing_twice_and_after_the_end_is_safe(self):
        for items in (0, 5):
            feed = Feed(ObservedSource(5), 2)
            with feed:
                self.assertEqual([next(feed) for _ in range(items)], list(range(items)))
            within_timeout(lambda feed=feed: feed.__exit__(None, None, None))

    def test_a_closed_feed_holds_no_items(self):
        class Item:
            pass

        items = []

        def made():
            while True:
                item = Item()
                items.append(weakref.ref(item))
                yield item
                del item

        with Feed(made(), 3) as feed:
            feed.wait_until_full(TIMEOUT_S)
        gc.collect()
        self.assertGreaterEqual(len(items), 3)
        self.assertFalse(any(item() for item in items))

    def test_an_exhausted_feed_stays_exhausted(self):
        with Feed(ObservedSource(2), 3) as feed:
            self.assertEqual(list(feed), [0, 1])
            self.assertEqual(within_timeout(lambda: list(feed)), [])
        self.assertEqual(within_timeout(lambda: list(feed)), [])

    def test_a_feed_closed_early_yields_no_more_items(self):
        with Feed(ObservedSource(9), 3) as feed:
            next(feed)
        self.assertEqual(within_timeout(lambda: list(feed)), [])

    def test_use_outside_a_with_block_is_an_error(self):
        feed = Feed(ObservedSource(1), 1)
        with self.assertRaisesRegex(RuntimeError, "with"):
            within_timeout(lambda: next(feed))
        with feed, self.assertRaises(RuntimeError):
            feed.__enter__()

    def test_a_depth_below_one_is_rejected(self):
        for depth in (0, -1):
            with self.assertRaisesRegex(ValueError, "depth"):
                Feed([], depth)

    def test_a_held_item_keeps_its_place_until_it_is_released_or_the_next_is_taken(self):
        source = ObservedSource()
        with Feed(source, depth=1) as feed:
            self.assertEqual(feed.hold(), 0)
            self.assertTrue(source.wait_for(2))  # waits for the place
            self.assertFalse(feed.is_ready)
            self.assertFalse(source.wait_for(3, timeout_s=0.02))
            feed.release()
            self.assertTrue(source.wait_for(3))
            self.assertEqual([feed.hold(), feed.hold(), next(feed)], [1, 2, 3])

    def test_wait_until_full_returns_when_the_feed_is_full(self):
        with Feed(ObservedSource(), 3) as feed:
            self.assertLess(feed.wait_until_full(TIMEOUT_S), TIMEOUT_S)
            self.assertEqual([next(feed) for _ in range(4)], [0, 1, 2, 3])
            self.assertLess(feed.wait_until_full(TIMEOUT_S), TIMEOUT_S)  # the feed was full before

    def test_wait_until_full_returns_when_the_iterable_ends_or_fails(self):
        def broken():
            yield 0
            raise ValueError

        for batches in ((), (1, 2), broken()):
            with Feed(batches, 8) as feed:
                self.assertLess(feed.wait_until_full(TIMEOUT_S), TIMEOUT_S)

    def test_wait_until_full_returns_at_its_timeout(self):
        may_end = threading.Event()

        def slow():
            yield 0
            may_end.wait(TIMEOUT_S)

        with Feed(slow(), 2) as feed:
            self.assertGreaterEqual(feed.wait_until_full(0.01), 0.01)
            self.assertEqual(next(feed), 0)
            may_end.set()


def host(produced: ProducedBatch) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in produced.features.items()}


@cache
def traced_once(device: str) -> ProduceFunction:
    """Return `trace_produce` of PLAIN, cached."""
    return trace_produce(device, PLAIN)


class PipelineCase(unittest.TestCase):
    """A corpus of 13 sinusoids by three speakers: two buckets, batches of three, two batches per step."""

    SETTINGS = DataConfig(batch_size=3, buckets=2, reference_seconds=0.5)
    SECONDS = tuple(0.3 + 0.05 * i for i in range(13))
    SEED = 5

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="pipeline "))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.manifest = write_corpus(cls.folder / "corpus", cls.SECONDS, speakers=3)
        cls.corpus = planned_corpus(cls.manifest, cls.SETTINGS, cls.SEED, accumulation=2)

    def tearDown(self):
        self.assertEqual(producers(), [])

    def pipeline(self, route: Route = ROUTE, **settings) -> Pipeline:
        data, cache = self.SETTINGS.model_copy(update=settings), self.folder / "cache"
        cached = patch.object(producer, "trace_produce", lambda device, _: traced_once(device))
        with cached if route.further_data else nullcontext():
            return Pipeline(self.corpus, [route], PLAIN, data, seed=self.SEED, cache_folder=cache)

    @classmethod
    def planned(cls, epochs: int = 1, reference_samples: int = 11_008) -> Iterator[PlannedBatch]:
        return planned_batches(
            cls.corpus.plan,
            cls.manifest,
            BEGINNING,
            seed=cls.SEED,
            reference_samples=reference_samples,
            epochs=epochs,
        )

    def reader(self, read_rows: ReadRows, **settings) -> LocalReader:
        data = self.SETTINGS.model_copy(update=settings)
        return LocalReader(self.manifest, TTS_INPUTS, 11_008, data, read_rows)

    def silent(self, planned: list[PlannedBatch], device: str = DATA) -> ReadBatches:
        """Return planned batches with TTS_INPUTS of silence on a device."""
        return self.reader(silence).read(planned, device)

    def epoch(self, start=BEGINNING, epochs=1, mean_over="step", route=ROUTE, **settings) -> list[ProducedBatch]:
        with self.pipeline(route, **settings).open_feed(start, epochs, mean_over) as feed:
            return [produced_batch for (produced_batch,) in feed]

    def assert_same(self, received: list[ProducedBatch], expected: list[ProducedBatch]):
        self.assertEqual(len(received), len(expected))
        for produced_batch, expected_batch in zip(received, expected, strict=True):
            step, expected_step = produced_batch.planned.step, expected_batch.planned.step
            self.assertEqual((step.position, step.next_position), (expected_step.position, expected_step.next_position))
            self.assertEqual(produced_batch.planned.last, expected_batch.planned.last)
            for name, array in host(produced_batch).items():
                np.testing.assert_array_equal(array, host(expected_batch)[name], err_msg=name, strict=True)


class PipelineTest(PipelineCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with patch.object(features, "log_mel", wraps=features.log_mel) as traced:
            cache = cls.folder / "cache"
            pipeline = Pipeline(cls.corpus, [ROUTE], PLAIN, cls.SETTINGS, seed=cls.SEED, cache_folder=cache)
            with pipeline.open_feed(Position(), epochs=2) as feed:
                cls.delivered = [produced_batch for (produced_batch,) in feed]
            cls.traced = traced.call_count
        cls.steps = cls.corpus.plan.steps_per_epoch
        cls.first_epoch = [
            produced_batch for produced_batch in cls.delivered if produced_batch.planned.step.position.epoch == 0
        ]

    def test_an_epoch_has_each_utterance_exactly_once(self):
        for epoch in (0, 1):
            rows = [d.planned.rows for d in self.delivered if d.planned.step.position.epoch == epoch]
            self.assertEqual(sorted(np.concatenate(rows).tolist()), list(range(13)))

    def test_every_batch_is_complete_and_on_the_data_device(self):
        for produced in self.delivered:
            check_batch(produced.features, TTS_FEATURES, "producing")
            require_device(DATA, produced.features.items())

    def test_the_mel_of_each_utterance_matches_librosa(self):
        for produced_batch in self.first_epoch:
            batch = host(produced_batch)
            for row, mel, frames in zip(produced_batch.planned.rows, batch["mel"], batch["frames"], strict=False):
                wave, _ = soundfile.read(self.manifest.paths[row])
                expected = librosa_log_mel(wave)
                self.assertEqual(frames, len(expected))
                np.testing.assert_allclose(mel[:frames], expected, atol=1e-3)

    def test_the_plan_of_a_batch_describes_its_content(self):
        for planned, batch, _ in self.delivered:
            batch = {name: tensor.numpy() for name, tensor in batch.items()}
            rows, real = planned.rows, len(planned.rows)
            np.testing.assert_array_equal(batch["frames"][:real], self.manifest.samples[rows] // HOP_SAMPLES)
            np.testing.assert_array_equal(batch["token_count"][:real], self.manifest.token_counts[rows])
            np.testing.assert_array_equal(batch["seed"], planned.arrays["seed"])
            references = self.manifest.samples[planned.arrays["reference_row"][:real]]
            half_second = 43 * HOP_SAMPLES  # in whole frames
            np.testing.assert_array_equal(
                batch["reference_frames"][:real], np.minimum(references, half_second) // HOP_SAMPLES
            )
            self.assertAlmostEqual(planned.audio_s, self.manifest.samples[rows].sum() / SAMPLE_RATE_HZ)
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
            self.assertEqual([d.planned.last for d in batches], [False] * (len(batches) - 1) + [True])
            frames, tokens = (sum(host(d)[name].sum() for d in batches) for name in ("frames", "token_count"))
            for batch in map(host, batches):
                self.assertEqual((batch["step_frames"], batch["step_tokens"]), (frames, tokens))

    def test_epoch_totals_are_the_same_in_every_batch(self):
        delivered = [host(produced_batch) for produced_batch in self.epoch(mean_over="epoch")]
        frames, tokens = (sum(batch[name].sum() for batch in delivered) for name in ("frames", "token_count"))
        self.assertEqual({(float(b["step_frames"]), float(b["step_tokens"])) for b in delivered}, {(frames, tokens)})

    def test_each_batch_has_its_own_seed(self):
        seeds = {tuple(host(produced_batch)["seed"]) for produced_batch in self.delivered}
        self.assertEqual(len(seeds), len(self.delivered))

    def test_producing_is_traced_once_over_all_buckets_and_epochs(self):
        self.assertEqual(len({produced_batch.planned.step.bucket for produced_batch in self.delivered}), 2)
        self.assertEqual(self.traced, 2)  # the utterance and its reference

    def test_every_batch_of_a_bucket_has_the_shape_in_the_plan(self):
        """So XLA compiles the alignment search once for each bucket."""
        for produced_batch in self.delivered:
            rows, samples, tokens = self.corpus.plan.shape(produced_batch.planned.step.bucket)
            batch = host(produced_batch)
            self.assertEqual(batch["mel"].shape[:2] + batch["tokens"].shape, (rows, frame_count(samples), rows, tokens))

    def test_reading_options_change_no_bit(self):
        for settings in (
            {"num_workers": 4, "buffer_size": 1, "prefetch_buffer_size": 1},
            {"num_workers": 1, "buffer_size": 20, "prefetch_buffer_size": 8, "use_tf_native_loading": False},
            {"cache_dataset": True},
        ):
            with self.subTest(**settings):
                self.assert_same(self.epoch(**settings), self.first_epoch)

    def test_vtlp_is_applied_only_if_the_extractor_has_it(self):
        settings = self.SETTINGS.model_copy(update={"vtlp": 0.2})
        deliveries = []
        for extractor in (PLAIN, tts_extractor(0.2), tts_extractor(0.2)):
            cache = self.folder / "cache"
            pipeline = Pipeline(self.corpus, [ROUTE], extractor, settings, seed=self.SEED, cache_folder=cache)
            with pipeline.open_feed(BEGINNING, 1) as feed:
                deliveries.append([produced_batch for (produced_batch,) in feed])
        self.assert_same(deliveries[0], self.first_epoch)  # only the extractor applies VTLP, not the setting
        self.assert_same(deliveries[1], deliveries[2])
        for produced_batch, plain in zip(deliveries[1], self.first_epoch, strict=True):
            batch, expected = host(produced_batch), host(plain)
            self.assertTrue(
                (batch["mel"] != expected["mel"]).any() and (batch["reference"] != expected["reference"]).any()
            )
            for name in set(batch) - {"mel", "reference", "f0_hz"}:
                np.testing.assert_array_equal(batch[name], expected[name], err_msg=name)

    def test_the_f0_of_each_utterance_is_its_frequency(self):
        for produced_batch in self.first_epoch:
            batch = host(produced_batch)
            for row, hz, frames in zip(produced_batch.planned.rows, batch["f0_hz"], batch["frames"], strict=False):
                if pitch_of(row) <= 600.0:
                    np.testing.assert_allclose(hz[4 : frames - 4], pitch_of(row), rtol=0.005)

    def test_starting_at_a_position_equals_skipping_to_it(self):
        for start in (Position(0, 2), Position(1, 0), Position(1, self.steps - 1)):
            with self.subTest(start=start):
                expected = [
                    produced_batch for produced_batch in self.delivered if produced_batch.planned.step.position >= start
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
            with pipeline.open_feed(Position()) as feed:
                self.assert_same([batch for _ in range(taken) for batch in next(feed)], self.first_epoch[:taken])
            self.assertEqual(producers(), [])

    def test_next_positions_traverse_the_epochs(self):
        ends = [produced_batch.planned.step for produced_batch in self.delivered if produced_batch.planned.last]
        positions = [Position(epoch, step) for epoch in (0, 1) for step in range(self.steps)]
        self.assertEqual([step.position for step in ends], positions)
        self.assertEqual([step.next_position for step in ends[:-1]], positions[1:])
        self.assertEqual(ends[-1].next_position, Position(2, 0))

    def test_an_endless_feed_can_be_closed_and_opened_again(self):
        pipeline = self.pipeline()
        for _ in range(2):
            with pipeline.open_feed(Position()) as feed:
                self.assert_same([*next(feed), *next(feed)], self.first_epoch[:2])

    def test_later_batches_are_produced_while_the_consumer_holds_one(self):
        produced, enough = [], threading.Event()
        produce_on_data = trace_produce(DATA, PLAIN)

        def watched(waves):
            result = produce_on_data(waves)
            produced.append(result.features["mel"].backing_device)
            if len(produced) == 4:
                enough.set()
            return result

        planned = [produced_batch.planned for produced_batch in self.first_epoch]
        batches = produced_batches(self.silent(planned), DATA, PLAIN, watched)
        with Feed(batches, depth=2) as feed:
            next(feed)
            self.assertTrue(enough.wait(TIMEOUT_S))  # this one, two in the feed, and one in production
        self.assertTrue(all(device.endswith(DATA[1:]) for device in produced), produced)

    def test_the_data_device_is_waited_for_only_if_asked(self):
        for options, waits in (({}, 0), ({"synchronize": True}, 2)):
            pipeline = Pipeline(self.corpus, [ROUTE], PLAIN, self.SETTINGS, seed=5, cache_folder=self.folder, **options)
            producer, element = pipeline.producers[0], Mock()
            produce = producer.produce
            producer.produce = lambda waves, produce=produce, element=element: produce(waves)._replace(element=element)
            with closing(producer.replica_batches(BEGINNING)) as batches:
                for _ in range(2):
                    next(batches)
            self.assertEqual(element.numpy.call_count, waits)

    def test_a_feed_keeps_as_many_batches_ready_as_the_setting_says(self):
        for depth in (1, 3):
            pipeline, source = self.pipeline(prefetch_buffer_size=depth), ObservedSource()
            produce = patch.object(pipeline.producers[0], "replica_batches", lambda *_, source=source: source)
            with produce, pipeline.open_feed(BEGINNING):
                self.assertTrue(source.wait_for(depth + 1))  # and the one that waits for a place
                self.assertFalse(source.wait_for(depth + 2, timeout_s=0.02))

    def test_the_wait_for_all_feeds_together_is_at_most_the_timeout(self):
        timeouts_s = []

        class Waiting:
            def wait_until_full(self, timeout_s):
                timeouts_s.append(timeout_s)
                return 2.0

        self.assertEqual(ReplicaFeed([[Waiting()], [Waiting()]], [[0], [1]]).wait_until_full(5.0), 4.0)
        self.assertEqual(timeouts_s, [5.0, 3.0])

    def test_every_operation_that_produces_features_is_bound_to_the_device(self):
        for device in (DATA, MODEL):
            operations = trace_produce(device, tts_extractor(0.1)).graph.get_operations()
            self.assertIn("RFFT", {operation.type for operation in operations})
            at = {op.device for op in operations if op.type not in ("Placeholder", "Identity")}  # arguments, results
            self.assertEqual(at, {f"/device:{device[1:]}"})

    def test_a_batch_on_the_wrong_device_is_rejected(self):
        planned = [self.first_epoch[0].planned]
        batches = produced_batches(self.silent(planned, MODEL), DATA, PLAIN, trace_produce(DATA, PLAIN))
        with self.assertRaisesRegex(PlacementError, f"must be on {DATA}, but found .* on {MODEL}"):
            next(batches)


def librosa_log_mel(wave: np.ndarray) -> np.ndarray:
    """Return the log-mel spectrogram by librosa alone, float64 [samples // 256, 80]."""
    wave = np.pad(wave.astype(np.float64), 384, mode="reflect")
    magnitude = np.abs(librosa.stft(wave, n_fft=1024, hop_length=256, center=False, dtype=np.complex128))
    bank = librosa.filters.mel(sr=SAMPLE_RATE_HZ, n_fft=1024, n_mels=80, fmin=0, fmax=8000, dtype=np.float64)
    return np.log(np.maximum(bank @ magnitude, 1e-5)).T


def silence(rows, starts, samples, padded):
    return tf.zeros([tf.size(rows), padded], tf.int16)


class SlowFilesTest(PipelineCase):
    def test_batches_keep_their_order_if_the_first_is_read_last(self):
        planned = list(
            planned_batches(
                self.corpus.plan, self.manifest, Position(), seed=self.SEED, reference_samples=11_008, epochs=1
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
            return tf.ensure_shape(tf.numpy_function(slow_at_first, [rows, padded], tf.int16), [None, None])

        pairs = self.reader(read_rows, num_workers=3, buffer_size=2, prefetch_buffer_size=3).read(planned, DATA)
        received = [(batch, int(waves["pcm"][0, 0])) for batch, waves in pairs]
        self.assertNotEqual(read[0], planned[0].arrays["row"].tolist())
        self.assertEqual(received, [(batch, int(batch.rows[0])) for batch in planned])

    def test_the_plan_is_read_as_far_ahead_as_both_buffers_are_deep(self):
        planned = list(self.planned())
        for host_batches, uploaded in ((1, 1), (4, 1), (1, 3)):
            with self.subTest(host_batches=host_batches, uploaded=uploaded):
                source = ObservedSource()
                reader = self.reader(silence, num_workers=1, buffer_size=host_batches, prefetch_buffer_size=uploaded)
                with closing(reader.read((planned[number % len(planned)] for number in source), DATA)) as pairs:
                    next(pairs)
                    ahead = 2 + host_batches + uploaded  # with the one that was taken and the one being read
                    self.assertTrue(source.wait_for(ahead))
                    self.assertFalse(source.wait_for(ahead + 1, timeout_s=0.05))

    def test_the_plan_is_iterated_once(self):
        planned = self.planned(2)
        positions = [batch.step.position for batch, _ in self.reader(silence).read(planned, DATA)]
        self.assertEqual(
            sorted(set(positions)), [Position(e, s) for e in (0, 1) for s in range(self.corpus.plan.steps_per_epoch)]
        )
        self.assertIsNone(next(planned, None))


class ReferenceTest(PipelineCase):
    """References of a quarter of a second from utterances of half a second and more, at random positions."""

    SECONDS = tuple(0.6 + 0.01 * i for i in range(9))

    def test_a_reference_is_a_random_segment_of_another_utterance_of_the_speaker(self):
        planned = list(
            planned_batches(
                self.corpus.plan, self.manifest, Position(), seed=self.SEED, reference_samples=5632, epochs=30
            )
        )
        starts = []
        for plan in planned:
            real = len(plan.rows)
            references, start = plan.arrays["reference_row"][:real], plan.arrays["reference_start"][:real]
            np.testing.assert_array_equal(self.manifest.speaker[references], self.manifest.speaker[plan.rows])
            self.assertFalse(np.any(references == plan.rows))
            np.testing.assert_array_equal(plan.arrays["reference_samples"][:real], 5632)
            latest = self.manifest.samples[references] - 5632
            self.assertTrue(np.all((start >= 0) & (start <= latest)))
            starts.extend(start / latest)
        self.assertGreater(len(set(starts)), 200)  # of 270
        self.assertAlmostEqual(float(np.mean(starts)), 0.5, delta=0.06)  # standard deviation 0.018

    def test_the_planned_reference_is_read(self):
        pipeline = self.pipeline(reference_seconds=0.5)
        with pipeline.open_feed(Position(), epochs=1) as feed:
            for ((planned, batch, _),) in feed:
                for i in range(len(planned.rows)):
                    row = planned.arrays["reference_row"][i]
                    begin, end = planned.arrays["reference_start"][i] + np.array([0, 11_008])
                    wave, _ = soundfile.read(self.manifest.paths[row])
                    self.assertAlmostEqual(frequency(wave[begin:end]), pitch_of(row), delta=2.0)
                    np.testing.assert_allclose(batch["reference"][i], librosa_log_mel(wave[begin:end]), atol=1e-3)


class DamagedCorpusTest(PipelineCase):
    """A file that changes after the manifest was made is named in an error at its batch."""

    def assert_named_at_its_batch(
        self, change: Callable[[Path], None], reason: str, row: int = 7, route: Route = ROUTE, **settings
    ):
        path = Path(self.manifest.paths[row])
        pipeline = self.pipeline(route, **settings)
        planned = list(
            planned_batches(
                self.corpus.plan, self.manifest, Position(), seed=self.SEED, reference_samples=11_008, epochs=1
            )
        )
        users = [row in plan.rows or row in plan.arrays["reference_row"][: len(plan.rows)] for plan in planned]
        content = path.read_bytes()
        change(path)
        delivered = []
        try:
            with pipeline.open_feed(Position(), epochs=1) as feed, self.assertRaisesRegex(DataError, reason) as raised:
                delivered.extend(feed)
        finally:
            path.write_bytes(content)
        self.assertEqual(len(delivered), users.index(True))
        step = planned[users.index(True)].step.position.step + 1
        self.assertIn(f"utterance 'u{row}' (epoch 1, step {step}): {path}", str(raised.exception))

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        rows = planned_batches(
            cls.corpus.plan, cls.manifest, Position(), seed=cls.SEED, reference_samples=11_008, epochs=1
        )
        seen = []
        for plan in rows:
            seen.append({*plan.rows.tolist(), *plan.arrays["reference_row"][: len(plan.rows)].tolist()})
        cls.latest = max(range(13), key=lambda row: [row in batch for batch in seen].index(True))

    def test_a_missing_file_is_named_at_its_batch(self):
        self.assert_named_at_its_batch(os.remove, "No such file", self.latest)

    def test_a_missing_file_is_named_at_its_batch_whoever_makes_it(self):
        for route in (TWO_PRODUCERS, THREE_PRODUCERS):
            self.assert_named_at_its_batch(os.remove, "No such file", self.latest, route)

    def test_a_missing_file_is_named_at_its_batch_by_soundfile(self):
        self.assert_named_at_its_batch(os.remove, "No such file", self.latest, use_tf_native_loading=False)

    def test_a_truncated_file_is_named_at_its_batch(self):
        def cut(path):
            with open(path, "r+b") as file:
                file.truncate(5_000)

        self.assert_named_at_its_batch(cut, "had [0-9]+ when the manifest was made", self.latest)

    def test_a_shorter_file_is_named_at_its_batch(self):
        for native in (True, False):
            self.assert_named_at_its_batch(
                lambda path: soundfile.write(path, np.zeros(7_000), SAMPLE_RATE_HZ),
                "has 7000 samples at 22050 Hz, but had",
                self.latest,
                use_tf_native_loading=native,
            )

    def test_a_longer_file_is_named_at_its_batch(self):
        for native in (True, False):
            self.assert_named_at_its_batch(
                lambda path: soundfile.write(path, np.zeros(70_000), SAMPLE_RATE_HZ),
                "has 70000 samples",
                self.latest,
                use_tf_native_loading=native,
            )

    def test_a_file_of_another_format_is_named_at_its_batch(self):
        def replace_with(channels, rate_hz, subtype):
            def change(path):
                samples = soundfile.info(path).frames
                soundfile.write(path, np.zeros((samples, channels)), rate_hz, subtype=subtype)

            return change

        self.assert_named_at_its_batch(replace_with(2, SAMPLE_RATE_HZ, "PCM_16"), "was 16-bit mono", self.latest)
        self.assert_named_at_its_batch(replace_with(1, 44_100, "PCM_16"), "samples at 22050 Hz, but had", self.latest)
        self.assert_named_at_its_batch(replace_with(1, SAMPLE_RATE_HZ, "PCM_24"), "was 16-bit mono", self.latest)


class UnusualCorpusTest(unittest.TestCase):
    """Each corpus passes through the pipeline completely, once."""

    def delivered(self, seconds, suffixes=(".wav",), speakers=1, name="corpus", **settings) -> list[ProducedBatch]:
        folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, folder)
        data = DataConfig(**{"batch_size": 2, "buckets": 3, "reference_seconds": 0.5} | settings)
        corpus = planned_corpus(write_corpus(folder / name, seconds, speakers, suffixes), data)
        with Pipeline(corpus, [ROUTE], PLAIN, data, seed=0, cache_folder=folder).open_feed(Position(), 1) as feed:
            delivered = [produced_batch for (produced_batch,) in feed]
        rows = np.concatenate([produced_batch.planned.rows for produced_batch in delivered])
        self.assertEqual(sorted(rows.tolist()), list(range(len(seconds))))
        for planned, batch, _ in delivered:
            mel = batch["mel"].numpy()
            for row, frames, spectrogram in zip(planned.rows, batch["frames"].numpy(), mel, strict=False):
                self.assertEqual(frames, round(seconds[row] * SAMPLE_RATE_HZ) // HOP_SAMPLES)
                self.assertGreater(spectrogram[:frames].max(axis=1).min(), -3.0)  # the tone is audible in every frame
        return delivered

    def test_a_single_utterance_is_its_own_reference(self):
        (produced_batch,) = self.delivered([0.4])
        batch = host(produced_batch)
        self.assertEqual(batch["frames"].tolist(), [34])  # no more rows than the corpus has
        np.testing.assert_array_equal(batch["reference"][0, :34], batch["mel"][0, :34])

    def test_very_short_and_very_long_utterances_are_read(self):
        delivered = self.delivered([0.06, 0.3, 20.0, 0.31], speakers=2, batch_seconds=1.0, reference_seconds=30.0)
        self.assertEqual({d.features["reference"].shape[1] for d in delivered}, {2583})  # 30 s in whole frames
        self.assertEqual(max(int(d.features["reference_frames"].numpy().max()) for d in delivered), 1722)  # 20 s

    def test_paths_with_spaces_and_letters_of_any_script_are_read(self):
        self.delivered([0.3, 0.4], suffixes=("  ა سلام ü %s.wav", " {0}'\".wav"), name="der Körper\t日本")

    def test_a_path_that_is_not_utf_8_is_read(self):
        self.delivered([0.3], name=os.fsdecode(b"caf\xe9"))


if __name__ == "__main__":
    unittest.main()
