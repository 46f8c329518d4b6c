"""Features and targets keep float32's precision where products round to TF32.

`tests/virtual_gpu/numerics.py` shows the same by numbers, on virtual GPUs.
"""

import unittest
from unittest import mock

import numpy as np
import tensorflow as tf

from myxtts.audio.pitch import f0
from myxtts.audio.vocoder import inverse_mel_scale
from myxtts.base.portable_ops import float32_matmul
from myxtts.config.schema import Config, TrainingConfig
from myxtts.devicefeed.contract import tensor_specs
from myxtts.run import setup
from myxtts.tasks.tts.features import tts_extractor
from myxtts.tasks.tts.prosody import target_prosody
from tests.two_devices import MODEL

RANDOM = np.random.default_rng(0)
FRAMES = [tf.TensorSpec([2, None, 80])]
WAVES = [tf.TensorSpec([2, None]), tf.TensorSpec([2], tf.int32)]
PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "Conv2D")


def normal(*shape):
    return tf.constant(RANDOM.normal(size=shape), tf.float32)


def float32_products(function, *specs) -> tuple[int, int]:
    """Return how many products a function traced for a GPU has, and how many may be rounded."""

    def on_gpu(*arguments):
        with tf.device("/GPU:0"):
            return function(*arguments)

    graph = tf.function(on_gpu).get_concrete_function(*specs).graph
    products = [op for op in graph.get_operations() if op.type in PRODUCTS]
    return len(products), sum(op.get_attr("T") == tf.float32 for op in products)


class TF32(unittest.TestCase):
    def test_no_feature_and_no_target_has_a_product_that_a_gpu_may_round(self):
        tokens = [
            tf.TensorSpec([2, None, 80]),
            tf.TensorSpec([2, None]),
            tf.TensorSpec([2, None], tf.int32),
        ]
        extractor = tts_extractor(vtlp=0.1)
        actual = float32_products(extractor.produce, tensor_specs(extractor.inputs))
        self.assertEqual(actual, (4, 0))
        for function, specs, products in (
            (f0, WAVES, 1),
            (lambda *arguments: target_prosody(*arguments, 6), tokens, 1),
            (inverse_mel_scale, FRAMES, 34),
        ):
            with self.subTest(function):
                self.assertEqual(float32_products(function, *specs), (products, 0))

    def test_without_tf32_a_gpu_computes_in_float32(self):
        with mock.patch.object(setup.devices, "configure"):
            for allowed, rounded in ((False, (1, 1)), (True, (1, 0))):
                setup.configure_devices(Config(training=TrainingConfig(tf32=allowed)))
                actual = tf.config.experimental.tensor_float_32_execution_enabled()
                self.assertEqual(actual, allowed)
                self.assertEqual(float32_products(f0, *WAVES), rounded)


class CPU(unittest.TestCase):
    def test_product_is_that_of_tensorflow(self):
        a, b = normal(3, 40, 50), normal(3, 60, 50)
        with tf.device(MODEL):
            product = float32_matmul(a, b, transpose_b=True)
            actual = product.numpy().tobytes()
            self.assertEqual(actual, tf.matmul(a, b, transpose_b=True).numpy().tobytes())
