"""The Legendre Memory Unit (Voelker et al. 2019), written from its mathematics.

A memory of order d represents the last `window` frames of a signal u by d numbers, the coefficients
of Legendre polynomials over the window. It is a linear system, θ m' = A m + B u, whose matrices
follow from the Padé approximation of a delay of θ. It has no trainable weights, so it equals a
convolution with its impulse response, and training computes all frames of an utterance in parallel
(Chilkuri & Eliasmith 2021, ICML). Streaming input uses the recurrence.

Shape legend: B batch, T frames, M memory channels, D order.
"""

from functools import cache

import numpy as np
import tensorflow as tf
from keras import layers

# The impulse response is cut off below this fraction of its largest value, which is float32's
# precision.
NEGLIGIBLE = 1e-7
# Frames computed at once, by a product with the Toeplitz matrix of the response. Forward and
# backward through the memory and the layer behind it take 18, 39 and 132 ms of processor time for
# 150, 300 and 900 frames; Fourier transforms, of the signal once and not for each order, take 45,
# 69 and 222 (16 rows, 48 channels of order 8).
BLOCK_FRAMES = 256


@cache
def discrete_state_space(order: int, window: float) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B of the discrete system m[t] = A m[t-1] + B u[t]: float64 [D, D] and [D].

    The continuous system has a_ij = (2i+1) (-1 if i < j, else (-1)^(i-j+1)) and b_i = (2i+1)
    (-1)^i, over the window in frames (Voelker et al. 2019, equation 2). A zero-order hold makes it
    discrete: the exponential of [[A, B], [0, 0]].
    """
    i = np.arange(order)[:, None]
    j = np.arange(order)[None, :]
    continuous = np.zeros([order + 1, order + 1])
    continuous[:order, :order] = (2 * i + 1) * np.where(i < j, -1.0, (-1.0) ** (i - j + 1))
    continuous[:order, order] = ((2 * i + 1) * (-1.0) ** i)[:, 0]
    with tf.device("/CPU:0"):
        discrete = tf.linalg.expm(continuous / window).numpy()
    return discrete[:order, :order], discrete[:order, order]


@cache
def impulse_response(order: int, window: float) -> np.ndarray:
    """Return the memory after a single 1, float32 [frames, D], until it is NEGLIGIBLE."""
    transition, response = discrete_state_space(order, window)
    frames: list[np.ndarray] = []
    largest = 0.0
    # Look at twice the window at once: a response crosses zero now and then, but never stays near
    # it for so long.
    while not frames or np.abs(frames[-int(2 * window) - 1 :]).max() > NEGLIGIBLE * largest:
        frames.append(response)
        largest = max(largest, np.abs(response).max())
        response = transition @ response
    significant = np.abs(frames).max(axis=1) > NEGLIGIBLE * largest
    return np.array(frames, np.float32)[: np.flatnonzero(significant)[-1] + 1]


class LegendreMemory(layers.Layer):
    """A Legendre memory of each channel, without weights, in float32 under every policy.

    It represents the past `window` frames, or the following ones if it is `backward`.
    """

    def __init__(self, order: int, window: float, backward: bool = False, **kwargs):
        super().__init__(**kwargs | {"dtype": "float32"})
        self.backward = backward
        transition, inputs = discrete_state_space(order, window)
        self.state_matrix, self.input_matrix = np.float32(transition), np.float32(inputs)
        self.response = impulse_response(order, window)

    def call(self, u):
        """[B, T, M] -> float32 [B, T, M · D].

        Zero padding does not change the memory of real frames, in either direction.
        """
        if self.backward:
            return tf.reverse(self._convolve(tf.reverse(u, [1])), [1])
        return self._convolve(u)

    def stream(self, u, state):
        """Continue the memory over the next chunk of a signal, by the recurrence.

        [B, T, M] and the state float32 [B, M, D] after the previous chunk, zeros at the start ->
        float32 [B, T, M · D], and the state after this chunk.
        """
        assert not self.backward, "a backward memory depends on frames that have not arrived"

        def step(memory, frame):
            frame = frame[..., None] * self.input_matrix
            return tf.matmul(memory, self.state_matrix, transpose_b=True) + frame

        # tf.scan cannot stack nothing, so there is a frame more.
        frames = tf.pad(tf.cast(u, tf.float32), [[0, 0], [0, 1], [0, 0]])
        states = tf.scan(step, tf.transpose(frames, [1, 0, 2]), state)[:-1]
        shape = [*tf.unstack(tf.shape(u)[:2]), u.shape[2] * len(self.input_matrix)]
        memory = tf.reshape(tf.transpose(states, [1, 0, 2, 3]), shape)
        return memory, tf.concat([state[None], states], axis=0)[-1]  # without frames, it stays

    # The T frames are divided into equal blocks of at most BLOCK_FRAMES. Each block gets the frames
    # before it that the response still reaches, and becomes one column of `windows` for each row
    # and channel. One matrix, the response shifted by one frame in each column, is multiplied with
    # all of them at once. Afterwards the blocks are put together again and the padding is cut off.
    def _convolve(self, u):
        """Convolve with the impulse response in equal blocks, each with the past that matters."""
        batch, frames = tf.unstack(tf.shape(u)[:2])
        blocks = tf.maximum((frames + BLOCK_FRAMES - 1) // BLOCK_FRAMES, 1)
        block = (frames + blocks - 1) // blocks
        # tf.where of int32 would run on the GPU.
        past = tf.minimum(blocks - 1, 1) * (len(self.response) - 1)
        inputs = tf.range(past + block)
        outputs = tf.range(block)
        padding = [[past, blocks * block - frames], [0, 0], [0, 0]]
        padded = tf.pad(tf.transpose(u, [1, 0, 2]), padding)
        windows = tf.gather(padded, inputs[:, None] + block * tf.range(blocks)[None, :])
        lag = past + outputs[None, :] - inputs[:, None]
        length = len(self.response)  # also the index of a row of zeros behind it
        valid_lag = tf.where((lag >= 0) & (lag < length), lag, length)
        toeplitz = tf.gather(np.pad(self.response, [(0, 1), (0, 0)]), valid_lag)
        windows, toeplitz = (tf.reshape(x, [past + block, -1]) for x in (windows, toeplitz))
        memory = tf.matmul(windows, toeplitz, transpose_a=True)
        memory = tf.reshape(memory, [blocks, batch, u.shape[2], block, len(self.input_matrix)])
        memory = tf.reshape(tf.transpose(memory, [1, 0, 3, 2, 4]), [batch, blocks * block, -1])
        return tf.ensure_shape(
            memory[:, :frames], [None, None, u.shape[2] * len(self.input_matrix)]
        )
