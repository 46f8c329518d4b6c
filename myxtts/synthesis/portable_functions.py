"""TensorFlow functions in place of operations that ONNX and LiteRT lack, or are slow at.

- A complex tensor is a pair of real ones.
- A real Fourier transform of N = n1 · n2 samples is two products of matrices with twiddle factors
  between them (Cooley & Tukey 1965), an eighth of the multiplications of one matrix.
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
# Of TensorFlow's Box-Muller transform.
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
    """Return the factors of a real transform of n1 · n2 samples, n2 ≥ n1.

    With k = k1 + n1 · k2 and n = n2 · a + b: the cosines and sines over a, float32 [2 · n1, n1];
    the twiddle factors, real and imaginary, [n1, n2]; and the complex product over b as one of real
    numbers, [2 · n2, 2 · (n2 / 2 + 1)].
    """
    n1 = 1 << (samples.bit_length() - 1) // 2
    n2 = samples // n1

    def turns(rows, columns, length):
        return np.exp(-2j * np.pi * np.outer(np.arange(rows), np.arange(columns)) / length)

    first, twiddle, second = turns(n1, n1, n1), turns(n1, n2, samples), turns(n2, n2 // 2 + 1, n2)
    blocks = np.block([[second.real, second.imag], [-second.imag, second.real]])
    parts = np.concatenate([first.real, first.imag]), twiddle.real, twiddle.imag, blocks
    return tuple(part.astype(np.float32) for part in parts)


def real_transform(frames) -> Complex:
    """Compute `tf.signal.rfft`: float32 [B, T, N] -> [B, T, N / 2 + 1]."""
    samples = int(frames.shape[-1])
    first, cosine, sine, second = _transform(samples)
    n1, n2 = cosine.shape
    outer = tf.shape(frames)[:2]
    by_rows = tf.matmul(first, tf.reshape(frames, [-1, n1, n2]))  # over a
    real, imag = by_rows[:, :n1], by_rows[:, n1:]
    turned = tf.concat([real * cosine - imag * sine, real * sine + imag * cosine], axis=2)
    spectrum = tf.reshape(tf.matmul(turned, second), [-1, n1, 2, n2 // 2 + 1])
    by_bin = tf.reshape(tf.transpose(spectrum, [0, 2, 3, 1]), [-1, 2, n1 * (n2 // 2 + 1)])
    bins = samples // 2 + 1
    shape = tf.concat([outer, [bins]], axis=0)
    parts = [tf.reshape(by_bin[:, part, :bins], shape) for part in (0, 1)]
    for part in parts:
        part.set_shape([*frames.shape[:-1], bins])
    return Complex(*parts)


def inverse_real_transform(spectrum: Complex):
    """Compute `tf.signal.irfft`: [B, T, N / 2 + 1] -> float32 [B, T, N]. The transposed product."""
    bins = int(spectrum.real.shape[-1])
    samples = 2 * (bins - 1)
    first, cosine, sine, second = _transform(samples)
    n1, n2 = cosine.shape
    outer = tf.shape(spectrum.real)[:2]
    weight = np.full(bins, 2.0 / samples, np.float32)  # conjugated bins are those twice
    weight[[0, -1]] = 1.0 / samples
    padding = [[0, 0], [0, n1 * (n2 // 2 + 1) - bins]]
    parts = [tf.pad(tf.reshape(x, [-1, bins]) * weight, padding) for x in spectrum]
    by_bin = tf.reshape(tf.stack(parts, axis=1), [-1, 2, n2 // 2 + 1, n1])
    rows = tf.reshape(tf.transpose(by_bin, [0, 3, 1, 2]), [-1, n1, 2 * (n2 // 2 + 1)])
    turned = tf.matmul(rows, second, transpose_b=True)
    real, imag = turned[:, :, :n2], turned[:, :, n2:]
    parts = [real * cosine + imag * sine, imag * cosine - real * sine]
    frames = tf.matmul(first, tf.concat(parts, axis=1), transpose_a=True)
    result = tf.reshape(frames, tf.concat([outer, [samples]], axis=0))
    result.set_shape([*spectrum.real.shape[:-1], samples])
    return result


def _product(word, factor: int):
    """Multiply words of 32 bits in int64; return the upper and lower 32 bits, uint64."""
    product = tf.cast(tf.cast(word, tf.int64) * factor, tf.uint64)
    return tf.bitwise.right_shift(product, np.uint64(32)), tf.bitwise.bitwise_and(
        product, np.uint64(LOW_32)
    )


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
    # Each draw of four words is of the counter after that of the previous one.
    first = tf.cast(tf.range((count + 3) // 4), word)
    words = [first, *(tf.fill(tf.shape(first), constant(part)) for part in _words(counter)[1:])]
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
    mantissas = (tf.cast(tf.math.floormod(part, constant(MANTISSA)), tf.int64) for part in words)
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
    """Compute `tf.nn.conv2d` over time as one product: [B, 1, T, C], [1, K, C, D].

    Runtimes multiply matrices of 8 bits fast, and convolve them slowly.
    """
    taps = kernel.shape[1]
    if padding == b"SAME":
        before = (taps - 1) // 2
        x = tf.pad(x, [[0, 0], [0, 0], [before, taps - 1 - before], [0, 0]])
    length = tf.shape(x)[2] - (taps - 1)
    windows = tf.concat([x[:, :, i : i + length] for i in range(taps)], axis=3)
    return tf.matmul(windows, kernel.reshape(-1, kernel.shape[3]))


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
