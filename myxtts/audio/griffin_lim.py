"""From a log-mel spectrogram back to a wave, without a trained vocoder."""

import numpy as np
import tensorflow as tf

from myxtts.audio.format import FFT_SAMPLES, HOP_SAMPLES, PAD_SAMPLES, WINDOW_SAMPLES
from myxtts.audio.mel import filter_bank, stft

ITERATIONS = 60
INVERSION_STEPS = 32
MOMENTUM = 0.99


def magnitude_from(log_mel):
    """Non-negative magnitudes whose mel is nearest to the given one.

    Multiplicative updates for non-negative least squares (Lee & Seung 2001), which keep every
    magnitude positive; the pseudo-inverse alone gives negative ones.

    Args:
        log_mel: float32 [batch, frames, 80].

    Returns:
        float32 [batch, frames, 513].
    """
    bank = tf.constant(filter_bank())  # [bins, bands]
    mel = tf.exp(log_mel)
    wanted = tf.matmul(mel, bank, transpose_b=True)
    gram = tf.matmul(bank, bank, transpose_b=True)
    magnitude = tf.maximum(tf.matmul(mel, np.linalg.pinv(filter_bank()).astype(np.float32)), 1e-6)
    for _ in range(INVERSION_STEPS):
        magnitude *= wanted / tf.maximum(tf.matmul(magnitude, gram), 1e-10)
    return magnitude


@tf.function(
    input_signature=[
        tf.TensorSpec([None, None, None], tf.float32),
        tf.TensorSpec([], tf.int32),
        tf.TensorSpec([2], tf.int32),
    ]
)
def griffin_lim(log_mel, iterations, seed):
    """Fast Griffin-Lim (Perraudin, Balazs & Søndergaard 2013) on the device it is called on.

    Args:
        log_mel: float32 [batch, frames, 80]; frames beyond an utterance's end are silence.
        iterations: int32 scalar; 30 is plain, 60 is clean.
        seed: int32 [2], of the first phases.

    Returns:
        float32 [batch, frames * 256] in [-1, 1].
    """
    magnitude = tf.cast(magnitude_from(log_mel), tf.complex64)
    phase = tf.random.stateless_uniform(tf.shape(magnitude), seed, 0.0, 2.0 * np.pi)
    accelerated = tf.exp(tf.complex(0.0, phase))
    previous = tf.zeros_like(magnitude)
    for _ in tf.range(iterations):
        projected = stft(_inverse(magnitude * _unit(accelerated)))
        accelerated = projected + MOMENTUM * (projected - previous)
        previous = projected
    wave = _inverse(magnitude * _unit(accelerated))[:, PAD_SAMPLES:-PAD_SAMPLES]
    return wave / tf.maximum(tf.reduce_max(tf.abs(wave), axis=1, keepdims=True), 1.0)


def waves_of(log_mel, frames, seed: tuple[int, int] = (0, 0)) -> list[np.ndarray]:
    """Waves of a batch of mels on the host, each cut to its own frames.

    Args:
        log_mel: float32 [batch, frames, 80]; frames: int32 [batch].
        seed: of the first phases.

    Returns:
        float32 [frames * 256] of each row.
    """
    waves = griffin_lim(log_mel, tf.constant(ITERATIONS), tf.constant(seed, tf.int32)).numpy()
    return [wave[: length * HOP_SAMPLES] for wave, length in zip(waves, np.asarray(frames), strict=True)]


def _unit(spectrum):
    return spectrum / tf.cast(tf.maximum(tf.abs(spectrum), 1e-12), tf.complex64)


def _inverse(spectrum):
    """Least-squares inverse of `stft`: complex64 [batch, frames, bins] -> float32 [batch, samples]."""
    window = tf.signal.inverse_stft_window_fn(HOP_SAMPLES, forward_window_fn=tf.signal.hann_window)
    return tf.signal.inverse_stft(spectrum, WINDOW_SAMPLES, HOP_SAMPLES, FFT_SAMPLES, window_fn=window)
