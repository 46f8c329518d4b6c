"""Log-mel spectrograms: the only place that turns a wave into features."""

from functools import cache

import librosa
import numpy as np
import tensorflow as tf

from myxtts.audio.format import (
    FFT_SAMPLES,
    HIGH_HZ,
    HOP_SAMPLES,
    LOG_FLOOR,
    LOW_HZ,
    MEL_BANDS,
    PAD_SAMPLES,
    SAMPLE_RATE_HZ,
    WINDOW_SAMPLES,
    frame_count,
)

SILENCE = float(np.log(LOG_FLOOR))


@cache
def mel_filters() -> np.ndarray:
    """Slaney's mel filters with unit area, float32 [bins, bands] (Slaney 1998, as librosa has them)."""
    return librosa.filters.mel(
        sr=SAMPLE_RATE_HZ, n_fft=FFT_SAMPLES, n_mels=MEL_BANDS, fmin=LOW_HZ, fmax=HIGH_HZ, norm="slaney", htk=False
    ).T.astype(np.float32)


def warped_mel_filters(factor):
    """The same filters for voices whose frequencies are all to lie at `factor` times where they are, and be as loud.

    A filter's gain at f is that of `filter_bank` at factor * f, from the triangle itself and not between its bins.
    No filter reaches above the Fourier transform's last bin for factors from 0.726, HIGH_HZ over half the rate.

    Args:
        factor: float32 [batch].

    Returns:
        float32 [batch, bins, bands].
    """
    edges = librosa.mel_frequencies(MEL_BANDS + 2, fmin=LOW_HZ, fmax=HIGH_HZ, htk=False)
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    bins = librosa.fft_frequencies(sr=SAMPLE_RATE_HZ, n_fft=FFT_SAMPLES)
    hz = tf.constant(bins, tf.float32)[:, None] * factor[:, None, None]
    area = 2.0 / (high - low)
    rise, fall = area / (centre - low), area / (high - centre)
    return tf.maximum(tf.minimum(hz * rise - low * rise, high * fall - hz * fall), 0.0)


def stft(wave):
    """Short-time Fourier transform without centring, in the wave's precision: [..., samples] -> [..., frames, bins]."""
    return tf.signal.stft(wave, WINDOW_SAMPLES, HOP_SAMPLES, FFT_SAMPLES, window_fn=tf.signal.hann_window)


def log_mel(waveform, samples=None, filters=None):
    """Log-mel spectrogram of waves at 22,050 Hz.

    Each wave is continued by its own reflection, at its own end, so that an utterance has the
    same mel alone and in a padded batch. The transform runs in float64: in float32 its rounding
    is 1 % of what a loud tone leaves in the quietest bands; this is equal to librosa within 2e-6.

    Args:
        waveform: float32 [batch, samples] in [-1, 1].
        samples: int32 [batch], the real samples of each row (0, or more than 384); all of them by default.
        filters: float32 [batch, bins, bands], in place of `filter_bank`.

    Returns:
        float32 [batch, samples // 256, 80]: natural logarithm of the mel magnitude, at least
        log(1e-5), which also fills the frames behind a row's last one.
    """
    padded = tf.shape(waveform)[1]
    if samples is None:
        samples = tf.repeat(padded, tf.shape(waveform)[0])
    spectrum = stft(tf.cast(_reflect(waveform, samples, padded), tf.float64))
    magnitude = tf.abs(tf.cast(spectrum, tf.complex64))
    filters = mel_filters() if filters is None else filters
    mel = tf.math.log(tf.maximum(tf.matmul(magnitude, filters), LOG_FLOOR))
    real = tf.sequence_mask(frame_count(samples), frame_count(padded))
    return tf.where(real[:, :, None], mel, SILENCE)


def _reflect(waveform, samples, padded):
    """Rows with PAD_SAMPLES reflected samples before their start and behind their own end.

    Only the edges are gathered and written: a gather of whole rows took a quarter of log_mel's time.
    """
    rows = tf.shape(waveform)[0]
    away = tf.tile(tf.range(1, PAD_SAMPLES + 1)[None, :], [rows, 1])  # samples from the edge
    last = samples[:, None] - 1
    inside = tf.maximum(padded - 1, 0)
    before = tf.gather(waveform, tf.minimum(tf.reverse(away, [1]), inside), batch_dims=1)
    behind = tf.gather(waveform, tf.clip_by_value(last - away, 0, inside), batch_dims=1)
    joined = tf.concat([before, waveform, tf.zeros_like(behind)], axis=1)
    row = tf.tile(tf.range(rows)[:, None], [1, PAD_SAMPLES])
    return tf.tensor_scatter_nd_update(joined, tf.stack([row, PAD_SAMPLES + last + away], axis=-1), behind)
