"""A feed of any dataset and function: order, devices, errors, times and its end."""

import threading
import unittest
from itertools import islice

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
            self.assertEqual(feed.summary(), "0 batches: too few for times")
            with self.assertRaisesRegex(ValueError, "^0 batches were taken; four or more"):
                _ = feed.times
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

    def test_what_is_no_flat_dictionary_of_dense_tensors_is_named(self):
        unknown = tf.TensorSpec(None, tf.float32)
        ragged = tf.RaggedTensorSpec([None], tf.float32)
        for made, found in (
            (lambda x: (x, x), r"found \(<tf.Tensor .*, <tf.Tensor .*\)\. Convert it"),
            (lambda x: x, "found <tf.Tensor "),
            (lambda x: None, "found None"),
            (lambda x: {}, "found {}"),
            (lambda x: {"a": x, "b": {"c": x}}, "found 'b': {'c'"),
            (lambda x: {"a": x, "b": 1.0, "c": None}, "found 'b': 1.0, 'c': None"),
            (lambda x: {"a": x, 7: x}, "found 7: <tf.Tensor "),
            (lambda x: {"a": tf.RaggedTensor.from_tensor(x[None])}, "found 'a': tf.RaggedTensor"),
            (lambda x: {"a": tf.sparse.from_dense(x)}, "found 'a': SparseTensor"),
            (lambda x: {"a": tf.py_function(abs, [x], tf.float32)}, "found 'a': .*shape=<unknown>"),
        ):
            message = f"`produce` must return a flat dictionary of dense .* rank, but {found}"
            with self.subTest(found), self.assertRaisesRegex(TypeError, message):
                DeviceFeed(numbers().map(lambda x, number: x), made, DATA, MODEL)
        for spec, found in ((unknown, "TensorSpec.shape=<unknown>"), (ragged, "RaggedTensorSpec")):
            dataset = tf.data.Dataset.from_generator(tuple, output_signature=(unknown, spec))
            message = f"dataset must have elements of dense .*'part_1': {found}.*`tf.ensure_shape`"
            with self.subTest(found), self.assertRaisesRegex(TypeError, message):
                DeviceFeed(dataset, double, DATA, MODEL)

    def test_a_device_that_does_not_exist_is_named_with_those_that_do(self):
        for devices in (("/CPU:7", MODEL), (DATA, "/CPU:7")):
            message = f"^there is no device /CPU:7; give one of {DATA}, {MODEL}, "
            with self.assertRaisesRegex(PlacementError, message):
                DeviceFeed(numbers(), double, *devices)
        names = (device.name for device in tf.config.list_logical_devices()[:2])
        with DeviceFeed(numbers(), double, *names) as feed:
            require_device(MODEL, within_timeout(lambda: next(feed)).items())

    def test_outside_of_with_it_raises_an_error_instead_of_waiting_for_ever(self):
        feed = DeviceFeed(numbers(), double, DATA, MODEL)
        with self.assertRaisesRegex(RuntimeError, "use it inside `with`"):
            within_timeout(lambda: list(feed))

    def test_a_pass_may_be_interrupted_but_a_second_one_raises_an_error(self):
        over = "^this feed has ended, after 8 batches: repeat.. the dataset, or make a feed for"
        with DeviceFeed(numbers(), double, DATA, MODEL) as feed:
            passes = [within_timeout(lambda n=n: [*islice(feed, n)]) for n in (3, 5)]
            self.assertEqual([len(batches) for batches in passes], [3, 5])
            self.assertEqual(within_timeout(lambda: list(feed)), [])
            for _ in range(2):
                self.assertIsNone(next(feed, None))
                with self.assertRaisesRegex(RuntimeError, over):
                    list(feed)
        with self.assertRaisesRegex(RuntimeError, over):
            list(feed)

    def test_closing_leaves_no_thread(self):
        before = threading.enumerate()
        with DeviceFeed(numbers(), double, DATA, MODEL) as feed:
            within_timeout(lambda: next(feed))
            names = {thread.name for thread in threading.enumerate()}
            self.assertIn("feed-hand-over_0", names)
        self.assertEqual(threading.enumerate(), before)

    def test_the_law_of_the_gain(self):
        self.assertEqual(gain(1.0, 1.0), 2.0)
        self.assertEqual(gain(1.0, 3.0), 4.0 / 3.0)
        self.assertEqual(gain(1.0, 1.0, 4.0), 0.5)
