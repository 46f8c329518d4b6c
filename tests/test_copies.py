"""Copies between host and GPU memory are found where a GPU makes them, once for each tensor."""

import unittest
from contextlib import nullcontext

import tensorflow as tf

from fakes.toy import traced_once
from myxtts.config.schema import Config
from myxtts.data.features import tts_extractor
from myxtts.models.layers import Dense
from myxtts.placement.audit import Copy, find_copies, has_gpu_kernels
from myxtts.portable_ops import on_host
from myxtts.tasks.asr import ASRTask
from tests.two_devices import DATA

X = tf.TensorSpec([None, None], tf.float32)
WHOLE = tf.TensorSpec([None], tf.int32)


def copies_of(function, *specs: tf.TensorSpec) -> list[Copy]:
    return find_copies(tf.function(function).get_concrete_function(*specs))


def summary(function, *specs: tf.TensorSpec) -> list[tuple[str, str, str]]:
    return [
        ("to host" if copy.to_host else "to GPU", copy.type, copy.consumer)
        for copy in copies_of(function, *specs)
    ]


@unittest.skipUnless(has_gpu_kernels(), "this build of TensorFlow has no GPU kernels to look up")
class CopiesTest(unittest.TestCase):
    def test_floats_and_shapes_alone_need_no_copy(self):
        self.assertEqual(summary(lambda x: tf.reshape(x * 2.0, [-1, tf.shape(x)[0] + 1]), X), [])

    def test_a_shape_among_floats_is_copied_to_the_gpu(self):
        actual = summary(lambda x: x * tf.cast(tf.shape(x)[0], tf.float32), X)
        self.assertEqual(actual, [("to GPU", "StridedSlice", "Cast")])

    def test_a_value_as_shape_is_copied_to_the_host(self):
        actual = summary(lambda x: tf.zeros(tf.cast(x[0], tf.int32)), X)
        self.assertEqual(actual, [("to host", "Cast", "Fill")])

    def test_consumers_in_the_same_memory_share_a_copy(self):
        def two_consumers(x, number):
            return tf.gather(x, number), tf.cast(number, tf.float32)

        self.assertEqual(summary(two_consumers, X, WHOLE), [("to GPU", "Placeholder", "Cast")])

    def test_integer_results_return_to_the_host(self):
        actual = summary(lambda x: tf.cast(x, tf.int32), X)
        self.assertEqual(actual, [("to host", "Cast", "Identity")])
        self.assertEqual(summary(lambda x: tf.cast(x, tf.int64), X), [])

    def test_copies_in_called_functions_are_found_with_their_lines(self):
        inner = tf.function(lambda x: x * tf.cast(tf.shape(x)[1], tf.float32))
        self.assertEqual(summary(lambda x: inner(x) + 1.0, X), [("to GPU", "StridedSlice", "Cast")])
        copy, *_ = find_copies(traced_once(DATA, tts_extractor()))
        self.assertRegex(copy.source, r"^\w+/\w+\.py:\d+$")

    def test_copies_of_an_iteration_are_marked(self):
        def loop(x):
            return tf.while_loop(
                lambda x: tf.reduce_sum(x) < 9.0,
                lambda x: x * tf.cast(tf.shape(x)[0], x.dtype),
                [x],
            )

        self.assertTrue(all(copy.in_loop for copy in copies_of(loop, X)))
        self.assertIn(("to host", "Less", "LoopCond"), summary(loop, X))

    def test_xla_keeps_integers_on_the_gpu(self):
        compiled = tf.function(lambda x, number: tf.gather(x, number + 1), jit_compile=True)
        actual = summary(lambda x, number: compiled(x, number), X, WHOLE)
        self.assertEqual(actual, [("to GPU", "Placeholder", "PartitionedCall")])

    def test_the_product_of_an_unknown_shape_waits_for_the_gpu(self):
        # A matrix product as of Keras' Dense with a tensor of unknown shape.
        copies = copies_of(lambda x: tf.tensordot(tf.stack([x, x]), tf.ones([3, 4]), 1), X)
        self.assertTrue(any(copy.to_host for copy in copies))

    def test_own_dense_layer_does_not_wait_for_the_gpu(self):
        dense = Dense(4)
        dense.build([None, None, 3])
        self.assertEqual(summary(dense, tf.TensorSpec([None, None, 3], tf.float32)), [])

    def test_what_runs_on_the_host_is_not_copied(self):
        def shape(x, seed, on_host):
            with on_host():
                size = tf.random.stateless_uniform([], seed, 0, 8, tf.int32)
            return tf.zeros(size) * x[0, 0]

        seed = tf.TensorSpec([2], tf.int32)
        copies = copies_of(lambda x, seed: shape(x, seed, nullcontext), X, seed)
        self.assertTrue(any(copy.to_host for copy in copies))
        self.assertEqual(summary(lambda x, seed: shape(x, seed, on_host), X, seed), [])

    def test_the_producer_does_not_wait_for_the_gpu(self):
        # In single placement it would wait for the steps that are queued on the same GPU.
        asr_extractor = ASRTask().extractor(Config(), training=True)
        for extractor, to_gpu in ((tts_extractor(0.1), 15), (asr_extractor, 12)):
            copies = find_copies(traced_once(DATA, extractor))
            self.assertEqual([copy for copy in copies if copy.to_host], [])
            self.assertLessEqual(len(copies), to_gpu)
