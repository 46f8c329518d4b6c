"""What a GPU computes otherwise than a CPU reaches no feature, no target and no loss.

`tests.test_virtual_gpu` runs this module in a process, on virtual GPUs that round to TF32.
"""

import unittest
from unittest import mock

import numpy as np
import tensorflow as tf

from benchmarks.proof import operations
from myxtts.audio.mel import log_mel
from myxtts.base import tf_internals
from myxtts.base.portable_ops import float32_matmul, function_per_device_type
from myxtts.tasks.tts.prosody import target_prosody
from tests.sine_corpus import librosa_log_mel, signals

CPU, GPU = "/CPU:0", "/GPU:0"


def setUpModule():
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.set_soft_device_placement(False)


def results(function, *arguments: np.ndarray) -> list[np.ndarray]:
    """Return what a function computes on a CPU, on a GPU, and there by the operations for CPUs."""
    values = []
    for device, type_ in ((CPU, "CPU"), (GPU, "GPU"), (GPU, "CPU")):
        with (
            tf.device(device),
            mock.patch.object(tf_internals, "device_type_in_scope", return_value=type_),
        ):
            values.append(function(*map(tf.constant, arguments)).numpy())
    return values


class TF32Test(unittest.TestCase):
    def test_log_mel_matches_librosa(self):
        wave = signals()["white noise"].astype(np.float32)
        expected = librosa_log_mel(wave)
        _, on_gpu, rounded = results(lambda wave: log_mel(wave)[0], wave[None])
        np.testing.assert_allclose(on_gpu, expected, rtol=0, atol=1e-5)
        self.assertGreater(np.abs(rounded - expected).max(), 1e-4)

    def test_target_prosody_is_kept(self):
        random = np.random.default_rng(0)
        mel = random.normal(size=[2, 30, 80]).astype(np.float32)
        f0_hz = (150.0 + 50.0 * np.abs(random.normal(size=[2, 30]))).astype(np.float32)
        path = np.repeat(np.arange(6, dtype=np.int32), 5) * np.ones([2, 1], np.int32)
        for field in ("pitch", "energy"):

            def target(*arguments, field=field):
                return getattr(target_prosody(*arguments, 6)[0], field)

            with self.subTest(field):
                expected, on_gpu, rounded = results(target, mel, f0_hz, path)
                np.testing.assert_allclose(on_gpu, expected, rtol=0, atol=1e-6)
                self.assertGreater(np.abs(rounded - expected).max(), 1e-5)

    def test_a_function_has_a_trace_for_each_type_of_device(self):
        # In TF32, 1 + 2^-12 is 1.
        row, column = np.float32([[1, -1]]), np.float32([[1 + 2**-12], [1]])
        function = function_per_device_type(tf.TensorSpec([1, 2]), tf.TensorSpec([2, 1]))
        values = results(function(float32_matmul), row, column)
        np.testing.assert_array_equal(np.ravel(values), [2**-12, 2**-12, 0])


class CtcTest(unittest.TestCase):
    def test_losses_and_gradients_are_those_of_the_cpu(self):
        """cuDNN takes at most 255 labels, and writes no gradient behind the end of a row."""
        for frames, labels in (([60, 41, 30, 0], [20, 9, 0, 0]), ([340, 340, 50], [256, 255, 20])):
            compared = operations.compare(operations.ctc("CTC", frames, labels), GPU)
            self.assertTrue(compared.met, compared)


if __name__ == "__main__":
    unittest.main()
