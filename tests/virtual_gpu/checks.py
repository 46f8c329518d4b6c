"""What virtual GPUs do, checked on them: `tests.test_virtual_gpu` runs this module in a process."""

import os
import tempfile
import unittest
from pathlib import Path

import numpy as np
import tensorflow as tf

from fakes.threads import mixed_up
from myxtts.batches.reading import rows_from_files
from tests.sine_corpus import write_corpus

# Of GPU 3; TensorFlow leaves 225 MiB of it to the system.
SMALL_MIB = int(os.environ["VIRTUAL_GPU_MEMORY_MIB"].split()[-1])


def setUpModule():
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    tf.config.set_soft_device_placement(False)


def results(device: str) -> dict[str, np.ndarray]:
    """Compute something with each way in which a kernel can run."""
    with tf.device(device):
        x = tf.random.stateless_normal([3, 40, 7], [1, 2])
        variable = tf.Variable(x)
        before = variable.read_value()
        variable.assign_add(tf.nn.relu(x))
        variable.assign_sub(x * 0.5)
        results = {
            "product": tf.matmul(x, x, transpose_b=True),
            "convolution": tf.nn.conv1d(x, tf.ones([5, 7, 2]), 1, "SAME"),
            "shape by values": tf.where(x > 0),
            "variable": variable.read_value(),
            "read before": before,
            "list": looped(x),
            "assigned": variable.assign(x),
        }
    return {name: value.numpy() for name, value in results.items()}


@tf.function
def looped(x):
    array = tf.TensorArray(tf.float32, 3)
    total = tf.zeros([40, 7])
    for i in tf.range(3):
        total += tf.sin(x[i])
        array = array.write(i, total)
    return array.stack()


def ctc_losses(device: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the losses of rows of 6 and 4 frames, and their gradient."""
    with tf.device(device), tf.GradientTape() as tape:
        logits = tf.random.stateless_normal([6, 2, 4], [3, 4])
        tape.watch(logits)
        labels = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], [1, 3, 2], [2, 2])
        losses = tf.nn.ctc_loss(labels, logits, None, tf.constant([6, 4]), blank_index=0)
        return losses.numpy(), tape.gradient(losses, logits).numpy()


class VirtualGpuTest(unittest.TestCase):
    def test_kernels_compute_what_those_of_the_cpu_compute(self):
        expected = results("/CPU:0")
        for name, value in results("/GPU:1").items():
            with self.subTest(name):
                # The CPU's own products are those of oneDNN.
                np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-5)

    def test_the_ctc_loss_is_that_of_cudnn(self):
        losses, gradient = ctc_losses("/GPU:0")
        expected_losses, expected = ctc_losses("/CPU:0")
        np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
        np.testing.assert_allclose(gradient[:, 0], expected[:, 0], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(gradient[:4, 1], expected[:4, 1], rtol=1e-4, atol=1e-6)
        # cuDNN leaves the gradient behind the end of a row as the memory was.
        self.assertTrue(np.isnan(gradient[4:, 1]).all())

    def test_memory_that_nothing_was_written_to_is_not_a_number(self):
        with tf.device("/GPU:0"):
            for dtype in (tf.float32, tf.bfloat16, tf.float64):
                used = tf.ones([1000], dtype) + 1
                used.numpy()
                del used
                empty = tf.raw_ops.Empty(shape=[1000], dtype=dtype, init=False)
                self.assertTrue(np.isnan(empty.numpy().astype(np.float64)).all())

    def test_lists_get_no_memory_that_the_stream_still_uses(self):
        """Their kernels run on the host: of eight such gradients four were not finite."""

        @tf.function
        def gradient(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                states = tf.scan(lambda state, y: tf.tanh(state * y), x, tf.ones([4]))
                loss = tf.reduce_sum(tf.square(states))
            return tape.gradient(loss, x)

        x = np.random.default_rng(0).normal(size=[33, 4]).astype(np.float32)
        with tf.device("/CPU:0"):
            expected = gradient(tf.constant(x)).numpy()
        with tf.device("/GPU:0"):
            for _ in range(20):
                np.testing.assert_allclose(gradient(tf.constant(x)).numpy(), expected, rtol=1e-4)

    def test_a_constant_waits_for_what_still_uses_its_memory(self):
        """Without the wait, ten of ten were NaN, or 14 if freed memory is not filled."""
        with tf.device("/GPU:0"):
            x, matrix = tf.fill([], 7.0), tf.ones([1000, 1000])
            for number in range(2, 5):
                function = tf.function(lambda x, factor=float(number): x * factor)
                function = function.get_concrete_function(x)
                for _ in range(20):
                    tf.matmul(matrix, matrix)
                # Written behind the products; the host frees the memory at once.
                for _ in range(40):
                    x + x
                # Makes the constant.
                self.assertEqual(function(x).numpy(), 7.0 * number)

    def test_a_copy_to_another_gpu_has_the_values_of_the_moment(self):
        with tf.device("/GPU:0"):
            variable = tf.Variable(tf.zeros([1000]))
        for number in range(20):
            with tf.device("/GPU:0"):
                variable.assign(tf.fill([1000], float(number)))
            with tf.device("/GPU:2"):
                copy = tf.identity(variable)
            with tf.device("/GPU:0"):
                variable.assign_add(tf.ones([1000]))
            self.assertEqual(copy.numpy().tolist(), [number] * 1000)

    def test_threads_get_results_of_their_own_only_where_operations_run_as_kernels(self):
        # If TensorFlow no longer mixes them up, `run_operations_as_kernels` can go.
        self.assertTrue(any(mixed_up("/GPU:0", 20, as_kernels=False) for _ in range(50)))
        self.assertEqual(mixed_up("/GPU:0", 50, as_kernels=True), 0)

    def test_placement_is_as_on_a_gpu(self):
        with tf.device("/GPU:0"):
            with self.assertRaises(tf.errors.InvalidArgumentError):
                tf.strings.length(tf.strings.join([tf.constant("a"), "b"]))
            self.assertIn("GPU:0", tf.zeros([2]).backing_device)
            self.assertIn("CPU:0", tf.shape(tf.zeros([2])).backing_device)

    def test_what_reads_a_corpus_takes_no_memory_of_a_gpu(self):
        before = tf.config.experimental.get_memory_info("GPU:0")["current"]
        with tempfile.TemporaryDirectory() as folder:
            manifest = write_corpus(Path(folder), (0.2,) * 8)
        read_rows = rows_from_files(manifest, native_loading=True)
        self.assertEqual(tf.config.experimental.get_memory_info("GPU:0")["current"], before)
        del read_rows

    def test_memory_is_limited(self):
        with tf.device("/GPU:3"):
            with self.assertRaisesRegex(tf.errors.ResourceExhaustedError, "_bfc"):
                tf.zeros([SMALL_MIB, 2**18])
            self.assertEqual(tf.reduce_sum(tf.ones([50, 2**18])).numpy(), 50 * 2**18)


if __name__ == "__main__":
    unittest.main()
