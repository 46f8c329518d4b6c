"""A fast STFT with three quarters of overlap, its inverse, the gradients of both; fast lengths.

Frames are made of whole hops, so that neither direction needs an index. The gradient of a real
transform is a real transform: TensorFlow's own is a complex one, of twice the work. Framing and
overlapping addition are each other's gradient: gradients of slices took 8 % of a vocoder's step.
"""

import numpy as np
import tensorflow as tf

from myxtts.audio.format import sample_rate_hz
from myxtts.base.portable_ops import on_host

# A Fourier transform is fast if its length has small factors: 2^n times 1, 3, 5, 9 or 15.
_FAST_LENGTHS = np.sort(np.outer(2 ** np.arange(10, 24), (1, 3, 5, 9, 15)).ravel()).astype(np.int32)

OVERLAP = 4  # hops in a frame
WINDOW_POWER = 1.5  # sum of the squared Hann windows at each sample: 4 · 3 / 8


def short_time_spectrum(wave, fft_samples: int):
    """Compute the STFT with a Hann window and a hop of fft_samples / 4, without padding.

    float32 [batch, samples], a multiple of the hop -> complex64 [batch, samples / hop - 3,
    fft_samples / 2 + 1].
    """
    return _real_transform(framed(wave, fft_samples) * _hann(fft_samples))


def inverse_short_time_spectrum(spectrum, fft_samples: int):
    """Compute the least-squares inverse of `short_time_spectrum` (Griffin & Lim 1984).

    complex64 [batch, frames, fft_samples / 2 + 1] -> float32 [batch, (frames + 3) * hop]. The first
    and last three hops are in fewer than four frames, and fade.
    """
    frames = _inverse_real_transform(spectrum, fft_samples) * (_hann(fft_samples) / WINDOW_POWER)
    return overlap_added(frames)


def framed(wave, samples: int):
    """Cut waves into frames, each a hop of samples / 4 after the one before it.

    [batch, S], a multiple of the hop -> [batch, S / hop - 3, samples].
    """

    @tf.custom_gradient
    def frames_of(wave):
        return _framed(wave, samples), _overlap_added

    return frames_of(wave)


@tf.custom_gradient
def overlap_added(frames):
    """Add frames where they overlap: [batch, T, samples] -> [batch, (T + 3) * samples / 4]."""
    return _overlap_added(frames), lambda upstream: _framed(upstream, frames.shape[-1])


def magnitude(spectrum, floor: float):
    """Return sqrt(|spectrum|² + floor), whose gradient is finite everywhere."""
    return tf.sqrt(tf.square(tf.math.real(spectrum)) + tf.square(tf.math.imag(spectrum)) + floor)


def scaled(spectrum, gain):
    """Multiply complex64 by float32 of the same shape."""
    return tf.complex(tf.math.real(spectrum) * gain, tf.math.imag(spectrum) * gain)


def counted(length):
    """Return 0, 1, 2, … below a scalar in host memory; a GPU takes `tf.range`'s ends from there."""
    with on_host():
        start, step = tf.constant(0, length.dtype), tf.constant(1, length.dtype)
    return tf.range(start, length, step)


def frequency_grid(samples, margin: int):
    """Return a fast length of a Fourier transform for some samples and a margin of silence.

    That is N, int32 scalar in host memory; and the frequencies of its bins in Hz, float32 [N/2+1].
    """
    with on_host():
        at = tf.searchsorted(tf.constant(_FAST_LENGTHS), tf.reshape(samples + margin, [1]))
        length = tf.gather(tf.constant(_FAST_LENGTHS), at)[0]
        bins = tf.cast(length // 2 + 1, tf.float32)
        step_hz = sample_rate_hz() / tf.cast(length, tf.float32)
    return length, counted(bins) * step_hz


def _hann(samples: int) -> np.ndarray:
    """Return the periodic Hann window, float32 [samples]."""
    return np.hanning(samples + 1)[:-1].astype(np.float32)


def _multiplicity(samples: int) -> np.ndarray:
    """Return the bins of the complex transform per bin of the real one, complex64 [bins]."""
    multiplicity = np.full(samples // 2 + 1, 2.0)
    multiplicity[[0, -1]] = 1.0
    return multiplicity.astype(np.complex64)


def _framed(wave, samples: int):
    hops = tf.reshape(wave, [tf.shape(wave)[0], -1, samples // OVERLAP])
    count = tf.shape(hops)[1] - OVERLAP + 1
    return tf.concat([hops[:, i : i + count] for i in range(OVERLAP)], axis=2)


def _overlap_added(frames):
    parts = [
        tf.pad(part, [[0, 0], [i, OVERLAP - 1 - i], [0, 0]])
        for i, part in enumerate(tf.split(frames, OVERLAP, axis=2))
    ]
    return tf.reshape(tf.add_n(parts), [tf.shape(frames)[0], -1])


@tf.custom_gradient
def _real_transform(frames):
    size = frames.shape[-1]

    def gradient(upstream):
        return tf.signal.irfft(upstream * (size / _multiplicity(size)), [size])

    return tf.signal.rfft(frames, [size]), gradient


def _inverse_real_transform(spectrum, size: int):
    @tf.custom_gradient
    def transform(spectrum):
        def gradient(upstream):
            return tf.signal.rfft(upstream, [size]) * (_multiplicity(size) / size)

        return tf.signal.irfft(spectrum, [size]), gradient

    return transform(spectrum)
