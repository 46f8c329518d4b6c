"""Log-mel spectrograms to compare with: librosa's in float64, and a transform in float32."""

import librosa
import numpy as np
import tensorflow as tf

from myxtts.audio.format import (
    FFT_SAMPLES,
    HOP_SAMPLES,
    LOG_FLOOR,
    LOW_HZ,
    PAD_SAMPLES,
    SAMPLE_RATE_HZ,
    high_hz,
    mel_bands,
)
from myxtts.audio.mel import mel_filters, stft
from myxtts.base.portable_ops import float32_matmul


def mel_by_librosa(wave: np.ndarray) -> np.ndarray:
    """Return the log-mel spectrogram by librosa alone, float64 [samples // 256, 80]."""
    reflected = np.pad(wave.astype(np.float64), PAD_SAMPLES, mode="reflect")
    spectrum = librosa.stft(
        reflected, n_fft=FFT_SAMPLES, hop_length=HOP_SAMPLES, center=False, dtype=np.complex128
    )
    bands = {
        "sr": SAMPLE_RATE_HZ,
        "n_fft": FFT_SAMPLES,
        "n_mels": mel_bands(),
        "fmin": LOW_HZ,
        "fmax": high_hz(),
    }
    filters = librosa.filters.mel(**bands, dtype=np.float64)
    return np.log(np.maximum(filters @ np.abs(spectrum), LOG_FLOOR)).T


def log_mel_float32(waves: tf.Tensor) -> tf.Tensor:
    """Compute `log_mel` of whole rows with an STFT in float32."""
    padded = tf.pad(waves, [[0, 0], [PAD_SAMPLES, PAD_SAMPLES]], "REFLECT")
    return tf.math.log(tf.maximum(float32_matmul(tf.abs(stft(padded)), mel_filters()), LOG_FLOOR))
