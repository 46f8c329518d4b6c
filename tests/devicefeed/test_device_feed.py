"""A feed of any dataset and function: order, devices, errors, times and its end."""

import unittest

from .devices import DATA, MODEL

# isort: split

import numpy as np
import tensorflow as tf

from myxtts.devicefeed import DeviceFeed, PlacementError, gain, require_device

from .feeds import producers, within_timeout


def numbers(count: int = 8) -> tf.data.Dataset:
    values = np.arange(count, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    return tf.data.Dataset.from_tensor_slices((values, np.arange(count)))


def double(values, number):
    return {"doubled": 2.0 * values, "number": number}


class DeviceFeedTest(unittest.TestCase):
    def taken(self, dataset, produce, **settings):
        with DeviceFeed(dataset, produce, DATA, MODEL, **settings) as feed:
            batches = within_timeout(lambda: list(feed))
        self.assertEqual(producers(), [])
        return batches

    def test_batches_are_on_the_model_device_in_order_at_every_depth(self):
        for depth in (1, 3):
            batches = self.taken(numbers(), double, depth=depth)
            self.assertEqual([int(batch["number"]) for batch in batches], [*range(8)])
            for number, batch in enumerate(batches):
                require_device(MODEL, batch.items())
                np.testing.assert_array_equal(batch["doubled"], np.full(3, 2.0 * number))

    def test_the_function_is_traced_once_and_runs_on_the_data_device(self):
        traced = []

        def produce(values, number):
            traced.append((2.0 * values).device)
            return {"rows": tf.reduce_sum(values) + tf.zeros([2])}

        # Unknown dimensions do not trace again.
        dataset = numbers(7).batch(2)
        self.assertEqual(dataset.element_spec[0].shape[0], None)
        self.assertEqual(len(self.taken(dataset, produce)), 4)
        self.assertEqual(len(traced), 1)
        self.assertTrue(traced[0].endswith(DATA[1:]), traced)

    def test_an_element_may_be_a_tensor_or_a_dictionary(self):
        dataset = numbers(3).map(lambda values, number: {"values": values, "number": number})
        (first, *_) = self.taken(dataset, lambda element: {"values": element["values"] + 1.0})
        np.testing.assert_array_equal(first["values"], np.ones(3))
        (first, *_) = self.taken(tf.data.Dataset.range(3), lambda n: {"n": tf.cast(n, "float32")})
        self.assertEqual(float(first["n"]), 0.0)

    def test_an_error_comes_in_place_of_its_batch(self):
        def read(values, number):
            tf.debugging.assert_less(number, tf.constant(5, tf.int64))
            return values, number

        taken = []
        with (
            self.assertRaises(tf.errors.InvalidArgumentError),
            DeviceFeed(numbers().map(read), double, DATA, MODEL) as feed,
        ):
            within_timeout(lambda: [taken.append(int(batch["number"])) for batch in feed])
        self.assertEqual((taken, producers()), ([*range(5)], []))

    def test_it_can_be_closed_while_it_is_full_and_has_times(self):
        with DeviceFeed(numbers(99).repeat(), double, DATA, MODEL, synchronize=True) as feed:
            with self.assertRaises(ValueError):
                feed.summary()
            for _, batch in zip(range(9), feed, strict=False):
                feed.running = batch["doubled"]
        self.assertEqual(producers(), [])
        produce_s, interval_s, wait_s = feed.times
        self.assertTrue(produce_s > 0.0 and 0.0 <= wait_s <= interval_s, feed.times)
        self.assertRegex(feed.summary(), r"^P \d+\.\d ms, step \d+\.\d ms, wait \d+\.\d %$")

    def test_a_function_without_floats_is_refused(self):
        with self.assertRaisesRegex(
            PlacementError, "number are made on .* none of them is a floating-point"
        ):
            DeviceFeed(numbers(), lambda values, number: {"number": number}, DATA, MODEL)

    def test_the_law_of_the_gain(self):
        self.assertEqual(gain(1.0, 1.0), 2.0)
        self.assertEqual(gain(1.0, 3.0), 4.0 / 3.0)
        self.assertEqual(gain(1.0, 1.0, 4.0), 0.5)
