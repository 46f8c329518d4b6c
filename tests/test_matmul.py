"""Features and targets keep float32's precision where products round to TF32."""

import unittest
from unittest import mock

import numpy as np
import tensorflow as tf

from fakes.gpu_numerics import on_emulated_gpu, tf32_products
from myxtts.audio.mel import log_mel
from myxtts.audio.pitch import f0
from myxtts.audio.vocoder import inverse_mel_scale
from myxtts.batch import tensor_specs
from myxtts.config.schema import Config, TrainingConfig
from myxtts.data.features import tts_extractor
from myxtts.models.prosody import target_prosody
from myxtts.portable_ops import float32_matmul, function_per_device_type
from myxtts.training import setup
from tests.sine_corpus import librosa_log_mel, signals
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
    def assert_kept(self, function, *arguments, atol, lost):
        """Check that rounding would change the result by more than `lost`, but changes < `atol`."""
        expected = function(*arguments)
        with tf32_products():
            rounded = function(*arguments)
            with on_emulated_gpu():
                kept = function(*arguments)
        self.assertGreater(np.abs(rounded - expected).max(), lost)
        np.testing.assert_allclose(kept, expected, rtol=0, atol=atol)

    def test_log_mel_matches_librosa(self):
        wave = signals()["white noise"][None].astype(np.float32)
        with tf32_products():
            rounded = np.abs(log_mel(wave)[0] - librosa_log_mel(wave[0])).max()
            with on_emulated_gpu():
                np.testing.assert_allclose(
                    log_mel(wave)[0], librosa_log_mel(wave[0]), rtol=0, atol=1e-5
                )
        self.assertGreater(rounded, 1e-4)

    def test_target_prosody_is_kept(self):
        mel, f0_hz = normal(2, 30, 80), 150.0 + 50.0 * tf.abs(normal(2, 30))
        path = tf.repeat(tf.range(6)[None], 5, axis=1) * tf.ones([2, 1], tf.int32)
        for field in ("pitch", "energy"):

            def target(*arguments, field=field):
                return getattr(target_prosody(*arguments, 6)[0], field).numpy()

            with self.subTest(field):
                self.assert_kept(target, mel, f0_hz, path, atol=1e-6, lost=1e-5)

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

    def test_function_has_a_trace_for_each_type_of_device(self):
        product = function_per_device_type(tf.TensorSpec([1, 2]), tf.TensorSpec([2, 1]))(
            float32_matmul
        )
        # In TF32, 1 + 2^-12 is 1.
        row, column = (tf.constant([[1.0, -1.0]]), tf.constant([[1.0 + 2.0**-12], [1.0]]))
        with tf32_products():
            products = [product(row, column)]
            with on_emulated_gpu():
                products.append(product(row, column))
            products.append(product(row, column))
        np.testing.assert_array_equal(np.ravel(products), [0.0, 2.0**-12, 0.0])
