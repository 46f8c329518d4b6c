"""Losses of a vocoder: distances between the spectra of two waves, for each row of a batch."""

import tensorflow as tf

from myxtts.audio.spectral import OVERLAP, magnitude, scaled, short_time_spectrum
from myxtts.models.layers import sum_over

RESOLUTIONS = (512, 1024, 2048)  # samples of a frame
COMPLEX_RESOLUTIONS = (512, 1024)
COMPRESSION = 0.3
# Keeps the ratio of a silent row finite.
COMPRESSED_FLOOR = 1e-2
# Below the 1e-8 of rounding to 16 bits in a frame of 512.
POWER_FLOOR = 1e-9
LOG_FLOOR = 1e-4


def multi_resolution_stft_loss(wave, target):
    """Compute spectral convergence plus the mean error of log magnitudes, at several resolutions.

    The loss is the mean over RESOLUTIONS (Yamamoto, Song & Kim 2020, Parallel WaveGAN, section 2.2;
    Arik, Jun & Diamos 2018).

    Args:
        wave, target: float32 [batch, samples]; at least 2048.

    Returns:
        float32 [batch].
    """
    return tf.add_n([_stft_loss(wave, target, size) for size in RESOLUTIONS]) / len(RESOLUTIONS)


def complex_stft_loss(wave, target):
    """Compute the spectral convergence of complex spectra with compressed magnitudes.

    The magnitudes are raised to COMPRESSION, so that quiet parts also count (Braun & Tashev 2021).
    The loss is the mean over COMPLEX_RESOLUTIONS.

    Args:
        wave, target: float32 [batch, samples]; at least 1024.

    Returns:
        float32 [batch]: 0 for equal waves, and about 1 for a silent wave.
    """

    def convergence(size):
        estimate, true = (_compressed(spectrum) for spectrum in _spectra(wave, target, size))
        return _ratio(_power(estimate - true), _power(true) + COMPRESSED_FLOOR)

    return tf.add_n([convergence(size) for size in COMPLEX_RESOLUTIONS]) / len(COMPLEX_RESOLUTIONS)


def _stft_loss(wave, target, size):
    estimate, true = (magnitude(spectrum, POWER_FLOOR) for spectrum in _spectra(wave, target, size))
    log_error = tf.abs(tf.math.log(estimate + LOG_FLOOR) - tf.math.log(true + LOG_FLOOR))
    return _ratio(tf.square(estimate - true), tf.square(true)) + mean_over(log_error)


def _spectra(wave, target, size):
    hop = size // OVERLAP
    whole = tf.shape(wave)[1] // hop * hop
    return [short_time_spectrum(x[:, :whole], size) for x in (wave, target)]


def _compressed(spectrum):
    """Raise magnitudes to COMPRESSION, keep phases; proportional below about 3e-3."""
    return scaled(spectrum, tf.pow(_power(spectrum) + 1e-5, 0.5 * (COMPRESSION - 1.0)))


def _power(spectrum):
    return tf.square(tf.math.real(spectrum)) + tf.square(tf.math.imag(spectrum))


def _ratio(error, power):
    """Return the square root of the ratio of sums: float32 [B, T, F] each -> [B]."""
    return tf.sqrt((sum_over(error, [1, 2]) + POWER_FLOOR) / (sum_over(power, [1, 2]) + 1e-3))


def mean_over(x):
    """Return the mean of each row: float32 [batch, A, B] -> [batch]."""
    values = tf.cast(tf.shape(x)[1], tf.float32) * float(x.shape[2])
    return sum_over(x, [1, 2]) / values
