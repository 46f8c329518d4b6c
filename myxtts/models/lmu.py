"""The Legendre Memory Unit (Voelker, Kajić & Eliasmith 2019, NeurIPS), written from its mathematics.

A memory of order d holds the last `window` frames of a signal u as d numbers, the coefficients of Legendre
polynomials over the window. It is a linear system, θ m' = A m + B u, whose matrices follow from the Padé approximation
of a delay of θ. Nothing in it is learnt, so it is the same as a convolution with its impulse response, and all
frames of an utterance can be had at once (Chilkuri & Eliasmith 2021, ICML): that is how it is trained. Speech that
arrives bit by bit goes through the recurrence.

Shape legend: B batch, T frames, M memory channels, D order.
"""

from functools import cache

import numpy as np
import tensorflow as tf
from keras import layers

# Below this share of its largest value the impulse response is nothing to a float32.
NEGLIGIBLE = 1e-7
# Frames that are made at once, by a product with the Toeplitz matrix of the response. Forward and backward through the
# memory and the layer behind it take 18, 39 and 132 ms of processor time for 150, 300 and 900 frames; by Fourier
# transforms, of the signal once and not for each order, 45, 69 and 222 (16 rows, 48 channels of order 8).
BLOCK_FRAMES = 256


@cache
def discrete_state_space(order: int, window: float) -> tuple[np.ndarray, np.ndarray]:
    """The system from one frame to the next, m[t] = A m[t-1] + B u[t]: float64 [D, D] and [D].

    Continuous, a_ij = (2i+1) (-1 if i < j, else (-1)^(i-j+1)) and b_i = (2i+1) (-1)^i, over the window in frames
    (Voelker et al. 2019, equation 2). Discrete by a zero-order hold: the exponential of [[A, B], [0, 0]].
    """
    i, j = np.arange(order)[:, None], np.arange(order)[None, :]
    held = np.zeros([order + 1, order + 1])
    held[:order, :order] = (2 * i + 1) * np.where(i < j, -1.0, (-1.0) ** (i - j + 1))
    held[:order, order] = ((2 * i + 1) * (-1.0) ** i)[:, 0]
    discrete = _exponential(held / window)
    return discrete[:order, :order], discrete[:order, order]


@cache
def impulse_response(order: int, window: float) -> np.ndarray:
    """Float32 [frames, D]: what a single 1 leaves in the memory, until it is NEGLIGIBLE."""
    transition, response = discrete_state_space(order, window)
    frames, largest = [], 0.0
    # Twice the window at once: a response crosses zero now and then, but never for so long.
    while not frames or np.abs(frames[-int(2 * window) - 1 :]).max() > NEGLIGIBLE * largest:
        frames.append(response)
        largest = max(largest, np.abs(response).max())
        response = transition @ response
    kept = np.abs(frames).max(axis=1) > NEGLIGIBLE * largest
    return np.array(frames, np.float32)[: np.flatnonzero(kept)[-1] + 1]


def decoder(order: int, window: float, delay: float) -> np.ndarray:
    """Float64 [D], whose product with the memory is the signal `delay` frames ago, from 0 to less than the window.

    The shifted Legendre polynomials (Voelker et al. 2019, equation 3) at the middle of the time that a frame is held.
    """
    return np.polynomial.legendre.legvander(2.0 * (delay + 0.5) / window - 1.0, order - 1).reshape(order)


class LegendreMemory(layers.Layer):
    """The memory of each channel. It has no weights, and computes in float32 whatever the policy.

    Args:
        order: numbers that each channel is held in.
        window: frames that it reaches back.
        backward: it holds the frames that follow instead.
    """

    def __init__(self, order: int, window: float, backward: bool = False, **kwargs):
        super().__init__(**kwargs | {"dtype": "float32"})
        self.backward = backward
        self.transition, self.feed = (part.astype(np.float32) for part in discrete_state_space(order, window))
        self.response = impulse_response(order, window)

    def call(self, u):
        """[B, T, M] -> float32 [B, T, M · D].

        Where padding is 0 it is the same as if it were not there, in both directions.
        """
        return tf.reverse(self._convolved(tf.reverse(u, [1])), [1]) if self.backward else self._convolved(u)

    def stream(self, u, state):
        """The memory of a stretch of speech that follows another, by the recurrence.

        Args:
            u: [B, T, M].
            state: float32 [B, M, D] behind the stretch before; zeros at the start.

        Returns:
            float32 [B, T, M · D], and the state behind this stretch.
        """
        if self.backward:
            raise ValueError("a memory of what follows cannot be streamed")
        if u.shape[1] == 0:
            return tf.zeros([tf.shape(u)[0], 0, u.shape[2] * len(self.feed)]), state
        frames = tf.transpose(tf.cast(u, tf.float32), [1, 0, 2])[..., None]
        states = tf.scan(
            lambda memory, frame: tf.matmul(memory, self.transition, transpose_b=True) + frame * self.feed,
            frames,
            state,
        )
        memory = tf.reshape(tf.transpose(states, [1, 0, 2, 3]), tf.concat([tf.shape(u)[:2], [-1]], axis=0))
        return memory, states[-1]

    def _convolved(self, u):
        """The convolution with the response, in blocks of equal length, each with what of the past still counts."""
        batch, frames = tf.unstack(tf.shape(u)[:2])
        blocks = tf.maximum((frames + BLOCK_FRAMES - 1) // BLOCK_FRAMES, 1)
        block = (frames + blocks - 1) // blocks
        past = tf.where(blocks > 1, len(self.response) - 1, 0)
        heard, said = tf.range(past + block), tf.range(block)
        padded = tf.pad(tf.transpose(u, [1, 0, 2]), [[past, blocks * block - frames], [0, 0], [0, 0]])
        windows = tf.gather(padded, heard[:, None] + block * tf.range(blocks)[None, :])  # [heard, blocks, B, M]
        lag = past + said[None, :] - heard[:, None]
        none = len(self.response)  # a row of zeros behind the response
        matrix = tf.gather(np.pad(self.response, [(0, 1), (0, 0)]), tf.where((lag >= 0) & (lag < none), lag, none))
        windows, matrix = (tf.reshape(part, [past + block, -1]) for part in (windows, matrix))
        memory = tf.matmul(windows, matrix, transpose_a=True)
        memory = tf.reshape(memory, [blocks, batch, u.shape[2], block, len(self.feed)])
        memory = tf.reshape(tf.transpose(memory, [1, 0, 3, 2, 4]), [batch, blocks * block, -1])[:, :frames]
        return tf.ensure_shape(memory, [None, None, u.shape[2] * len(self.feed)])


def _exponential(matrix: np.ndarray) -> np.ndarray:
    """Matrix exponential: Taylor's series of a part small enough, squared back (within 3e-13 up to order 32)."""
    squarings = max(0, int(np.ceil(np.log2(np.abs(matrix).sum(axis=1).max()))) + 1)
    small = matrix / 2.0**squarings
    result = term = np.eye(len(matrix))
    for power in range(1, 20):
        term = term @ small / power
        result = result + term
    for _ in range(squarings):
        result = result @ result
    return result
