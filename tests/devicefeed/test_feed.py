"""The feed: order, depth, errors and closing."""

import gc
import threading
import unittest
import weakref
from itertools import islice

from myxtts.devicefeed.feed import Feed, StopArrived

from .feeds import TIMEOUT_S, ObservedSource, producers, within_timeout


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
        # Breaks unless both stages run at the same time.
        barrier = threading.Barrier(2, timeout=TIMEOUT_S)

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

        cases = (Unopened(), OSError), (exiting(), SystemExit), (badly_closed(), OSError)
        for batches, error in (*cases, (7, TypeError)):
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
            self.assertEqual(source.closed_in, "feed-producer")

    def test_a_consumer_that_waits_heeds_a_stop(self):
        asked, may_end = threading.Event(), threading.Event()

        def stuck():
            yield 0
            may_end.wait(TIMEOUT_S)

        with Feed(stuck(), 1) as feed:
            self.addCleanup(may_end.set)
            feed.is_stopped = asked.is_set
            self.assertEqual(next(feed), 0)
            asked.set()
            with self.assertRaises(StopArrived):
                next(feed)
            may_end.set()

    def test_a_feed_without_its_thread_raises_an_error(self):
        for use in (next, list):
            feed = Feed(ObservedSource(), 1)
            with self.assertRaisesRegex(RuntimeError, "^no thread fills this feed: .* `with`$"):
                within_timeout(lambda feed=feed, use=use: use(feed))

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
        closing.join(0.05)
        self.assertTrue(producers() and not closed.is_set())
        may_end.set()
        closing.join(TIMEOUT_S)
        self.assertTrue(closed.is_set())

    def test_a_closed_or_exhausted_feed_has_no_more_items_and_can_be_closed_again(self):
        for items in (0, 1, 5):
            feed = Feed(ObservedSource(5), 2)
            with feed:
                self.assertEqual(list(islice(feed, items)), list(range(items)))
                if items == 5:
                    for _ in range(2):
                        self.assertEqual(within_timeout(lambda feed=feed: list(feed)), [])
            self.assertEqual(within_timeout(lambda feed=feed: list(feed)), [])
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

    def test_wait_until_full_returns_when_the_feed_is_full_or_its_source_ends_or_fails(self):
        def broken():
            yield 0
            raise ValueError

        for batches, taken in ((ObservedSource(), 4), ((), 0), ((1, 2), 2), (broken(), 1)):
            with Feed(batches, 3) as feed:
                self.assertLess(feed.wait_until_full(TIMEOUT_S), TIMEOUT_S)
                self.assertEqual(feed.fill, (min(taken, 3), 3))
                self.assertEqual(len(list(islice(feed, taken))), taken)
                self.assertLess(feed.wait_until_full(TIMEOUT_S), TIMEOUT_S)

    def test_wait_until_full_returns_at_its_timeout(self):
        may_end = threading.Event()

        def slow():
            yield 0
            may_end.wait(TIMEOUT_S)

        with Feed(slow(), 2) as feed:
            self.assertGreaterEqual(feed.wait_until_full(0.01), 0.01)
            self.assertLess(feed.wait_until_full(TIMEOUT_S, lambda: True), TIMEOUT_S)
            self.assertEqual(next(feed), 0)
            may_end.set()
