"""The Legendre memory: convolution and recurrence agree, and it represents the past signal."""

import unittest
from unittest import mock

import numpy as np
import tensorflow as tf

from myxtts.tasks.asr import lmu
from myxtts.tasks.asr.lmu import LegendreMemory, discrete_state_space, impulse_response
from tests.two_devices import MODEL

CASES = ((1, 4.0), (4, 16.0), (8, 16.0), (8, 2.5), (16, 64.0))  # order, window


def memory_of(u, order, window, backward=False, block_frames=lmu.BLOCK_FRAMES):
    layer = LegendreMemory(order, window, backward)
    with tf.device(MODEL), mock.patch.object(lmu, "BLOCK_FRAMES", block_frames):
        return layer(tf.constant(u)).numpy()


def recurrence(u, order, window):
    """Compute the memory by its definition, m[t] = A m[t-1] + B u[t], in float64."""
    state_matrix, input_matrix = discrete_state_space(order, window)
    state, states = np.zeros([u.shape[0], u.shape[2], order]), []
    for t in range(u.shape[1]):
        state = state @ state_matrix.T + u[:, t, :, None] * input_matrix
        states.append(state)
    return np.stack(states, axis=1).reshape(*u.shape[:2], -1)


def noise(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def delay_decoder(order: int, window: float, delay: float) -> np.ndarray:
    """Return float64 [D], whose product with the memory is the signal `delay` frames ago.

    These are the shifted Legendre polynomials (Voelker et al. 2019, equation 3) at the middle of
    the frame's duration.
    """
    return np.polynomial.legendre.legvander([2.0 * (delay + 0.5) / window - 1.0], order - 1)[0]


class System(unittest.TestCase):
    def test_order_1_is_a_leaky_integrator(self):
        """θ m' = -m + u, held for a frame: m[t] = e^(-1/θ) m[t-1] + (1 - e^(-1/θ)) u[t]."""
        state_matrix, input_matrix = discrete_state_space(1, 4.0)
        self.assertAlmostEqual(state_matrix[0, 0], np.exp(-0.25), places=14)
        self.assertAlmostEqual(input_matrix[0], 1 - np.exp(-0.25), places=14)

    def test_a_constant_is_represented_by_the_first_polynomial_only(self):
        for order, window in CASES:
            memory = recurrence(np.ones([1, 20 * int(window), 1]), order, window)[0, -1]
            np.testing.assert_allclose(memory, np.eye(order)[0], atol=1e-5)

    def test_two_half_steps_equal_one_step(self):
        """A zero-order hold over a frame equals two over half a frame: A = a a, B = a b + b."""
        for order, window in ((8, 16.0), (32, 100.0)):
            state_matrix, input_matrix = discrete_state_space(order, window)
            half, half_input = discrete_state_space(order, 2 * window)
            np.testing.assert_allclose(state_matrix, half @ half, atol=1e-12)
            np.testing.assert_allclose(input_matrix, half @ half_input + half_input, atol=1e-12)

    def test_the_impulse_response_is_negligible_after_its_end(self):
        for order, window in CASES:
            response = impulse_response(order, window)
            largest = np.abs(response).max()
            self.assertGreater(np.abs(response[-1]).max(), lmu.NEGLIGIBLE * largest)
            impulse = np.zeros([1, 3 * len(response), 1])
            impulse[0, 0] = 1.0
            rest = recurrence(impulse, order, window)[0, len(response) :]
            self.assertLessEqual(np.abs(rest).max(), 1.1 * lmu.NEGLIGIBLE * largest)


class Memory(unittest.TestCase):
    def test_equals_the_recurrence_for_any_block_length(self):
        for order, window in CASES:
            for frames in (1, 37, 300):
                u = noise(3, frames, 2)
                expected = recurrence(u, order, window)
                for block_frames in (10, 100, 300):
                    with self.subTest(case=(order, window, frames, block_frames)):
                        memory = memory_of(u, order, window, block_frames=block_frames)
                        np.testing.assert_allclose(memory, expected, atol=1e-5)

    def test_equals_the_convolution_by_fourier_transform(self):
        for order, window in CASES:
            u, response = noise(3, 300, 2), impulse_response(order, window).astype(float)
            points = 300 + len(response)
            spectrum = np.fft.rfft(u, points, axis=1)[..., None]
            product = spectrum * np.fft.rfft(response, points, axis=0)[:, None]
            expected = np.fft.irfft(product, points, axis=1)[:, :300].reshape(3, 300, -1)
            np.testing.assert_allclose(memory_of(u, order, window), expected, atol=1e-5)

    def test_streaming_chunks_equals_the_whole_signal(self):
        for order, window in CASES:
            layer, u = LegendreMemory(order, window), noise(2, 50, 3)
            whole, state, chunks = layer(u), tf.zeros([2, 3, order]), []
            for begin, end in ((0, 1), (1, 1), (1, 20), (20, 50)):
                chunk, state = layer.stream(tf.constant(u[:, begin:end]), state)
                chunks.append(chunk)
            np.testing.assert_allclose(tf.concat(chunks, axis=1), whole, atol=1e-5)
            np.testing.assert_allclose(tf.reshape(state, [2, -1]), whole[:, -1], atol=1e-5)

    def test_chunks_of_any_length_stream_with_one_trace(self):
        layer = LegendreMemory(4, 8.0)
        signature = [tf.TensorSpec([None, None, 3]), tf.TensorSpec([None, 3, 4])]
        stream, u = tf.function(layer.stream, input_signature=signature), noise(2, 9, 3)
        state = tf.random.stateless_normal([2, 3, 4], [0, 1])
        memory, unchanged = stream(u[:, :0], state)
        self.assertEqual(memory.shape, (2, 0, 12))
        np.testing.assert_array_equal(unchanged, state)
        for frames in (1, 9):
            memory, _ = stream(u[:, :frames], tf.zeros([2, 3, 4]))
            np.testing.assert_allclose(memory, layer(u[:, :frames]), atol=1e-5)
        self.assertEqual(stream.experimental_get_tracing_count(), 1)

    def test_backward_equals_the_memory_of_the_reversed_signal(self):
        u = noise(2, 40, 3)
        backward = memory_of(u, 6, 12.0, backward=True)
        np.testing.assert_allclose(backward, memory_of(u[:, ::-1], 6, 12.0)[:, ::-1], atol=1e-6)

    def test_zero_padding_does_not_change_real_frames(self):
        u, frames = noise(3, 60, 2), (60, 23, 1)
        for row, real in enumerate(frames):
            u[row, real:] = 0.0
        for backward in (False, True):
            for block_frames in (13, 100):
                together = memory_of(u, 8, 16.0, backward, block_frames)
                for row, real in enumerate(frames):
                    alone = memory_of(u[row : row + 1, :real], 8, 16.0, backward, block_frames)
                    np.testing.assert_allclose(together[row, :real], alone[0], atol=1e-5)

    def test_memory_is_causal(self):
        u = noise(1, 40, 1)
        later = u.copy()
        later[0, 25:] += 1.0
        for block_frames in (13, 100):
            settings = {"order": 8, "window": 16.0, "block_frames": block_frames}
            before, after = (memory_of(signal, **settings) for signal in (u, later))
            np.testing.assert_allclose(before[0, :25], after[0, :25], atol=1e-5)
            self.assertGreater(np.abs(before[0, 25:] - after[0, 25:]).max(axis=1).min(), 0.01)

    def test_gradient_equals_the_backward_memory(self):
        """With order 1 the gradient by the signal is a convolution in the other direction."""
        u, weight = tf.constant(noise(2, 50, 2)), noise(2, 50, 2, seed=1)
        for block_frames in (13, 100):
            with mock.patch.object(lmu, "BLOCK_FRAMES", block_frames), tf.GradientTape() as tape:
                tape.watch(u)
                loss = tf.reduce_sum(weight * LegendreMemory(1, 8.0)(u))
            expected = memory_of(weight, 1, 8.0, backward=True)
            np.testing.assert_allclose(tape.gradient(loss, u), expected, atol=1e-5)

    def test_stays_float32_in_mixed_precision(self):
        for dtype in ("bfloat16", "float16"):
            layer = LegendreMemory(4, 16.0)
            u = tf.cast(noise(1, 30, 2), dtype)
            memory = layer(u)
            self.assertEqual(memory.dtype, tf.float32)
            expected = recurrence(tf.cast(u, tf.float64).numpy(), 4, 16.0)
            np.testing.assert_allclose(memory, expected, atol=1e-5)


class DelayLine(unittest.TestCase):
    def test_a_delayed_signal_is_decoded_from_the_memory(self):
        """Noise up to 4 cycles a window, half of what 16 coefficients can represent at best."""
        frames, order, window = 2000, 16, 64.0
        spectrum = np.fft.rfft(noise(frames))
        spectrum[int(frames * 4 / window) :] = 0.0
        signal = np.fft.irfft(spectrum, frames).astype(np.float32)
        memory = memory_of(signal[None, :, None], order, window)[0]
        for delay in (0, 16, 32, 48, 63):
            target = np.concatenate([np.zeros(delay), signal[: frames - delay]])[200:]
            error = memory[200:] @ delay_decoder(order, window, delay) - target
            self.assertLess(np.sqrt(np.mean(error**2) / np.mean(target**2)), 0.1, delay)
