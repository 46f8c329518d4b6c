"""Batches are copied to the model device ahead of the step that takes them, in order."""

import unittest
from contextlib import contextmanager
from types import SimpleNamespace

from .devices import DATA, MODEL

# isort: split

import numpy as np
import tensorflow as tf

from myxtts.devicefeed.audit import require_device
from myxtts.devicefeed.contract import Field
from myxtts.devicefeed.handover import HandOver, LookAhead
from myxtts.devicefeed.producer import ProducedBatch

FIELDS = {"mel": Field("float32", ("batch", 3)), "frames": Field("int32", ("batch",))}


class CountingFeed:
    """One replica's batches, named by their numbers from 1, in steps of `microbatches`.

    Raises ValueError after `fail_after` batches. It is ready but for the batches in `late`.
    """

    def __init__(self, fail_after=None, microbatches=1, late=()):
        self.taken = 0
        self._fail_after, self._microbatches, self._late = fail_after, microbatches, late

    @property
    def is_ready(self):
        return self.taken + 1 not in self._late

    def __next__(self):
        if self.taken == self._fail_after:
            raise ValueError(f"batch {self.taken + 1} is bad")
        self.taken += 1
        tag = SimpleNamespace(last=self.taken % self._microbatches == 0)
        return (ProducedBatch(tag, self.taken, None),)


class LookAheadTest(unittest.TestCase):
    def setUp(self):
        self.calls = []

    def begin(self, features):
        self.calls.append(("begin", *features))
        return SimpleNamespace(result=lambda: features)

    @contextmanager
    def waiting(self):
        self.calls.append("wait")
        yield

    def take_steps(self, steps, feed, wait=None):
        """Take steps as a training loop does; record what is begun and taken."""
        synchronize = lambda step: self.calls.append(("synchronize", step))  # noqa: E731
        ahead = LookAhead(feed, self, *([wait] if wait else []), synchronize=synchronize)
        for step in range(1, steps + 1):
            running = step - 1 if step > 1 else None
            for batches in ahead.take(running, steps_left=steps - step + 1):
                self.calls.append((step, *batches))

    def test_two_microbatches_are_handed_over_ahead_of_each(self):
        ahead = [("begin", 1), ("begin", 2), ("begin", 3), (1, 1), ("begin", 4)]
        self.take_steps(4, CountingFeed())
        self.assertEqual(self.calls, [*ahead, (2, 2), (3, 3), (4, 4)])
        self.setUp()
        self.take_steps(2, CountingFeed(microbatches=2))
        self.assertEqual(self.calls, [*ahead, (1, 2), (2, 3), (2, 4)])

    def test_the_last_step_waits_for_no_further_batch(self):
        feed = CountingFeed(fail_after=4)
        self.take_steps(4, feed)
        self.assertEqual(feed.taken, 4)

    def test_an_error_is_raised_after_exactly_the_steps_before_it(self):
        for microbatches, batches, steps in ((1, 5, 5), (1, 0, 0), (2, 4, 2), (2, 5, 2), (3, 5, 1)):
            self.setUp()
            with self.assertRaisesRegex(ValueError, f"^batch {batches + 1} is bad$"):
                self.take_steps(9, CountingFeed(batches, microbatches))
            taken = {call[0] for call in self.calls} - {"begin"}
            self.assertEqual(taken, set(range(1, steps + 1)))

    def test_a_batch_that_is_late_is_waited_for_after_the_device_is_done(self):
        self.take_steps(3, CountingFeed(late=(1, 4)))
        expected = [("begin", 1), ("begin", 2), ("begin", 3), (1, 1), (2, 2), (3, 3)]
        self.assertEqual(self.calls, expected)
        self.setUp()
        self.take_steps(5, CountingFeed(late=(1, 4)), self.waiting)
        ahead = [*["wait"] * 3, *expected[:4], ("synchronize", 1), "wait", ("begin", 4)]
        self.assertEqual(self.calls, [*ahead, (2, 2), "wait", ("begin", 5), (3, 3), (4, 4), (5, 5)])


class HandOverTest(unittest.TestCase):
    def test_each_batch_is_copied_bit_for_bit_to_the_device_of_its_replica(self):
        batches = []
        for number in range(2):
            with tf.device(DATA):
                mel = tf.random.stateless_normal([2, 3], [number, 0])
                batches.append({"mel": mel, "frames": tf.constant([number, 7])})
        hand_over = HandOver(FIELDS, [MODEL, DATA])
        for copies in (hand_over(batches), hand_over.begin(batches).result()):
            for copy, batch, device in zip(copies, batches, (MODEL, DATA), strict=True):
                require_device(device, copy.items())
                for name, value in batch.items():
                    np.testing.assert_array_equal(copy[name], value)
