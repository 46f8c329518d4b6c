"""Log-mel spectrograms. All features are computed here."""

from functools import cache

import librosa
import numpy as np
import tensorflow as tf

from myxtts.audio import format as audio
from myxtts.audio.format import FFT_SAMPLES, LOW_HZ, PAD_SAMPLES, high_hz, mel_bands, sample_rate_hz
from myxtts.audio.spectral import framed, magnitude
from myxtts.base.portable_ops import by_rows, float32_matmul

SILENCE = float(np.log(audio.LOG_FLOOR))


@cache
def mel_filters() -> np.ndarray:
    """Return the mel filters of librosa with unit area (Slaney 1998), float32 [bins, bands]."""
    filters = librosa.filters.mel(
        sr=sample_rate_hz(), n_fft=FFT_SAMPLES, n_mels=mel_bands(), fmin=LOW_HZ, fmax=high_hz()
    )
    return filters.T.astype(np.float32)


@cache
def inverse_mel_filters() -> np.ndarray:
    """Return the pseudo-inverse of the mel filters, float32 [bands, bins]."""
    bins = int(np.flatnonzero(mel_filters().any(axis=1))[-1]) + 1  # up to high_hz()
    return np.linalg.pinv(mel_filters()[:bins]).astype(np.float32)


def warped_mel_filters(factor):
    """Return mel filters that scale the frequencies of a voice and keep its loudness (VTLP).

    The gain of a filter at f is the gain of the same filter of `mel_filters` at factor * f. It is
    computed from the triangle, not interpolated between bins. At 22.05 kHz, for factors of 0.726 or
    more, no filter extends beyond the last bin of the Fourier transform. Where the mel extends to
    half the rate, the scale is bent above 0.7 of it, so that its end stays where it is (Jaitly &
    Hinton 2013).

    float32 [batch] -> float32 [batch, bins, bands].
    """
    edges = librosa.mel_frequencies(mel_bands() + 2, fmin=LOW_HZ, fmax=high_hz())
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    bins = librosa.fft_frequencies(sr=sample_rate_hz(), n_fft=FFT_SAMPLES)
    bin_hz, factor = tf.constant(bins, tf.float32)[:, None], factor[:, None, None]
    hz = bin_hz * factor
    if 2.0 * high_hz() >= sample_rate_hz():
        knee, end = 0.7 * high_hz(), high_hz()
        bent = end - (end - bin_hz) * (end - knee * factor) / (end - knee)
        hz = tf.where(bin_hz > knee, bent, hz)
    area = 2.0 / (high - low)
    rise, fall = area / (centre - low), area / (high - centre)
    return tf.maximum(tf.minimum(hz * rise - low * rise, high * fall - hz * fall), 0.0)


def stft(wave):
    """Compute the STFT without centring, in the wave's precision: [B, S] -> [B, T, bins]."""
    whole = tf.shape(wave)[1] // audio.HOP_SAMPLES * audio.HOP_SAMPLES
    frames = framed(wave[:, :whole], FFT_SAMPLES)
    return tf.signal.rfft(frames * tf.signal.hann_window(FFT_SAMPLES, dtype=wave.dtype))


def log_mel(waveform, samples=None, filters=None):
    """Compute the log-mel spectrogram of waves at the process's sample rate.

    Each wave is padded by its own reflection at its real end, so an utterance has the same mel
    alone and in a padded batch. The transform runs in float64: in float32 the rounding error is 1 %
    of what a loud tone contributes to the quietest bands. The result equals librosa's within 2e-6.

    float32 [batch, samples] in [-1, 1] -> [batch, samples // 256, 80]: the natural logarithm of the
    mel magnitude, at least log(1e-5). Frames after the end of a row are log(1e-5).

    Args:
        samples: int32 [batch], the number of real samples of each row (0, or more than 384).
        filters: float32 [batch, bins, bands], used instead of `mel_filters`.
    """
    padded = tf.shape(waveform)[1]
    if samples is None:
        samples = tf.repeat(padded, tf.shape(waveform)[0])
    mel = log_mel_of_frames(_reflect(waveform, samples, padded), filters)
    real = tf.sequence_mask(audio.frame_count(samples), audio.frame_count(padded))
    return tf.where(real[:, :, None], mel, SILENCE)


def log_mel_of_frames(waveform, filters=None):
    """Compute the log-mel of padded waves, whose frame i begins at 256 · i: see `log_mel`."""

    def of_rows(waveform, filters=None):
        spectrum = tf.cast(stft(tf.cast(waveform, tf.float64)), tf.complex64)
        if filters is None:
            filters = mel_filters()
        # Not tf.abs, which takes nine times as long: it avoids an overflow that cannot happen here.
        mel = float32_matmul(magnitude(spectrum, 0.0), filters)
        return tf.math.log(tf.maximum(mel, audio.LOG_FLOOR))

    tensors = [waveform] if filters is None else [waveform, filters]
    return by_rows(of_rows, tensors, tf.TensorSpec([None, mel_bands()], tf.float32))


def _reflect(waveform, samples, padded):
    """Add PAD_SAMPLES reflected samples before the start and after the real end of each row.

    Only the edges are gathered and written: gathering whole rows took a quarter of the time of
    `log_mel`.
    """
    rows = tf.shape(waveform)[0]
    distance = tf.range(1, PAD_SAMPLES + 1)  # in samples from the edge
    last = samples[:, None] - 1
    last_index = tf.maximum(padded - 1, 0)
    before = tf.gather(waveform, tf.minimum(tf.range(PAD_SAMPLES, 0, -1), last_index), axis=1)
    after = tf.gather(waveform, tf.clip_by_value(last - distance, 0, last_index), batch_dims=1)
    padded_wave = tf.concat([before, waveform, tf.zeros_like(after)], axis=1)
    # Not tf.tile, which computes int32 on a GPU.
    row = tf.range(rows)[:, None] + tf.zeros([PAD_SAMPLES], tf.int32)
    indices = tf.stack([row, PAD_SAMPLES + last + distance], axis=-1)
    return tf.tensor_scatter_nd_update(padded_wave, indices, after)
