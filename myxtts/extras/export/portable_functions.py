"""TensorFlow functions in place of operations that ONNX and LiteRT lack, or are slow at.

- A complex tensor is a pair of real ones.
- A real Fourier transform of N = n1 · n2 samples is two products of matrices, the second with the
  twiddle factors (Cooley & Tukey 1965): an eighth of the multiplications of one matrix.
- Normal noise is TensorFlow's own, by Philox (Salmon et al. 2011) in integers.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
PHILOX_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
LOW_32 = 0xFFFFFFFF
MANTISSA = 1 << 23
# The least uniform number of TensorFlow's Box-Muller transform, whose logarithm stays finite.
MIN_UNIFORM = 1e-7


class Complex(NamedTuple):
    """A complex tensor: two float32 tensors of its shape."""

    real: Any
    imag: Any


def complex_product(a: Complex, b: Complex) -> Complex:
    return Complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)


def complex_quotient(a: Complex, b: Complex) -> Complex:
    power = b.real * b.real + b.imag * b.imag
    return complex_product(a, Complex(b.real / power, -b.imag / power))


@cache
def _transform(samples: int) -> tuple[np.ndarray, ...]:
    """Return the factors of a real transform of n1 · n2 samples, n2 ≥ n1, float32.

    With k = k1 + n1 · k2 and n = n2 · a + b: the cosines and sines over a, [2 · n1, n1]; the
    complex product over b for each k1 and half of k2 as one of real numbers, [n1, 2 · n2, n2]; and
    that of the inverse, [n1, n2, 2 · n2]. The last bin, which is real as the first is, has the
    place of the first one's imaginary part.
    """
    n1 = 1 << (samples.bit_length() - 1) // 2
    n2 = samples // n1

    first = np.exp(-2j * np.pi * np.outer(np.arange(n1), np.arange(n1)) / n1)
    bins = np.arange(n1)[:, None, None] + n1 * np.arange(n2 // 2)
    second = np.exp(-2j * np.pi * np.arange(n2)[:, None] * bins / samples)
    forward = np.block([[second.real, second.imag], [-second.imag, second.real]])
    forward[0, :, n2 // 2] = [*((-1.0) ** np.arange(n2)), *np.zeros(n2)]
    inverse = forward.swapaxes(1, 2) * (2.0 / samples)  # conjugated bins are those twice
    inverse[0, [0, n2 // 2]] /= 2.0
    parts = np.stack([first.real, first.imag], axis=1).reshape(-1, n1), forward, inverse
    return tuple(part.astype(np.float32) for part in parts)


def real_transform(frames) -> Complex:
    """Compute `tf.signal.rfft`: float32 [B, T, N] -> [B, T, N / 2 + 1]."""
    samples = int(frames.shape[-1])
    first, second, _ = _transform(samples)
    n1, n2 = len(second), second.shape[2]
    rows = tf.matmul(first, tf.reshape(frames, [-1, n1, n2]))  # over a
    by_k1 = tf.matmul(tf.transpose(tf.reshape(rows, [-1, n1, 2 * n2]), [1, 0, 2]), second)
    shape = tf.concat([tf.shape(frames)[:2], [samples // 2]], axis=0)
    # Each part alone, since runtimes move a single axis fast.
    parts = (tf.transpose(part, [1, 2, 0]) for part in tf.split(by_k1, 2, axis=2))
    real, imag = (tf.reshape(part, shape) for part in parts)
    last, imag = imag[:, :, :1], tf.pad(imag[:, :, 1:], [[0, 0], [0, 0], [1, 1]])
    spectrum = Complex(tf.concat([real, last], axis=2), imag)
    for part in spectrum:
        part.set_shape([*frames.shape[:-1], samples // 2 + 1])
    return spectrum


def inverse_real_transform(spectrum: Complex):
    """Compute `tf.signal.irfft`: [B, T, N / 2 + 1] -> float32 [B, T, N]. The transposed product."""
    real, imag = spectrum
    samples = 2 * (int(real.shape[-1]) - 1)
    first, _, second = _transform(samples)
    n1, n2 = len(second), second.shape[1]
    imag = tf.concat([real[:, :, -1:], imag[:, :, 1:-1]], axis=2)
    parts = (tf.reshape(part, [-1, n2 // 2, n1]) for part in (real[:, :, :-1], imag))
    by_k1 = tf.concat([tf.transpose(part, [2, 0, 1]) for part in parts], axis=2)
    rows = tf.reshape(tf.transpose(tf.matmul(by_k1, second), [1, 0, 2]), [-1, 2 * n1, n2])
    frames = tf.matmul(first, rows, transpose_a=True)
    result = tf.reshape(frames, tf.concat([tf.shape(real)[:2], [samples]], axis=0))
    result.set_shape([*real.shape[:-1], samples])
    return result


def _product(word, factor: int):
    """Multiply words of 32 bits in int64; return the upper and lower 32 bits, uint64."""
    product = tf.cast(tf.cast(word, tf.int64) * factor, tf.uint64)
    return tf.bitwise.right_shift(product, np.uint64(32)), tf.bitwise.bitwise_and(
        product, np.uint64(LOW_32)
    )


# Philox counts: each counter is scrambled with the key in ten rounds and becomes four random words.
# The key and the first counter follow from the seed, now. Words become uniform numbers in [0, 1) by
# their last 23 bits, and pairs of these become pairs of normal numbers.
def normal_numbers(shape, seed, word=tf.uint64, product: Callable = _product):
    """Compute `tf.random.stateless_normal` as on a CPU; the seed is known.

    `word` is the type of 32 bits, and `product` multiplies it: see `_product`.
    """
    with tf.init_scope():
        seed = tf.get_static_value(seed)
        key, counter = map(np.asarray, tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed))

    def constant(number: int) -> np.ndarray:
        return np.array(number, np.uint32).astype(word.as_numpy_dtype)

    count = tf.reduce_prod(shape)
    # Each draw of four words takes the next counter.
    first = tf.cast(tf.range((count + 3) // 4), word)
    words = [first, *(constant(part) for part in _words(counter)[1:])]
    keys = _words(key)
    xor = tf.bitwise.bitwise_xor
    for _ in range(PHILOX_ROUNDS):
        (high_0, low_0), (high_2, low_2) = map(product, words[::2], PHILOX_MULTIPLIERS)
        words = [
            xor(xor(high_2, words[1]), constant(keys[0])),
            low_2,
            xor(xor(high_0, words[3]), constant(keys[1])),
            low_0,
        ]
        keys = [(k + step) & LOW_32 for k, step in zip(keys, PHILOX_KEY_STEPS, strict=True)]
    mantissas = (tf.cast(part & constant(MANTISSA - 1), tf.int64) for part in words)
    uniform = [tf.cast(mantissa, tf.float32) / MANTISSA for mantissa in mantissas]
    normals = []
    for radius, turn in (uniform[:2], uniform[2:]):
        length = tf.sqrt(-2.0 * tf.math.log(tf.maximum(radius, MIN_UNIFORM)))
        normals += [length * tf.sin(2.0 * np.pi * turn), length * tf.cos(2.0 * np.pi * turn)]
    return tf.reshape(tf.reshape(tf.stack(normals, axis=1), [-1])[:count], shape)


def _words(numbers: np.ndarray) -> list[int]:
    """Split uint64 into uint32, the lower one first."""
    return np.frombuffer(np.asarray(numbers, "<u8").tobytes(), "<u4").tolist()


def convolution(x, kernel: np.ndarray, padding: bytes):
    """Compute `tf.nn.conv2d` over time as one product: [B, 1, T, C], [1, K, C, D]."""
    taps = kernel.shape[1]
    if padding == b"SAME":
        before = (taps - 1) // 2
        x = tf.pad(x, [[0, 0], [0, 0], [before, taps - 1 - before], [0, 0]])
    places = tf.range(tf.shape(x)[2] - (taps - 1))[:, None] + tf.range(taps)
    rows = tf.reshape(tf.gather(x, places, axis=2), [tf.shape(x)[0], 1, -1, taps * x.shape[3]])
    return tf.matmul(rows, kernel.reshape(-1, kernel.shape[3]))


def upper_bound(rows, values):
    """Compute `tf.searchsorted` with the side right: [B, N], [B, T] -> int32 [B, T]."""
    is_above = tf.expand_dims(values, 2) >= tf.expand_dims(rows, 1)
    return tf.reduce_sum(tf.cast(is_above, tf.int32), axis=2)


def sigmoid(x):
    """Compute `tf.sigmoid` with a small relative error.

    That of onnxruntime has an absolute one. SiLU multiplies it by x, so where a trained layer is
    mostly below -10, its outputs were off by 4e-5 of their RMS: most of all rounding of a voice.
    """
    return 1.0 / (1.0 + tf.exp(-x))
