"""Audio format of the project: the common 22.05 kHz mel convention.

HiFi-GAN (Kong et al. 2020) and Matcha-TTS use the same values, so public vocoders accept these
mels. This module does not import TensorFlow, because the manifest and the batch plan count frames
with it.
"""

from math import log

SAMPLE_RATE_HZ = 22_050
FFT_SAMPLES = 1024
WINDOW_SAMPLES = 1024
HOP_SAMPLES = 256  # 11.6 ms
MEL_BANDS = 80
LOW_HZ = 0.0
HIGH_HZ = 8_000.0
# 384 reflected on each side, so that frames = samples // 256.
PAD_SAMPLES = (FFT_SAMPLES - HOP_SAMPLES) // 2
# A log-mel is the natural logarithm of a magnitude.
DECIBELS_PER_NEPER = 20.0 / log(10.0)
TOP_DB = 48.0  # frames further below the loudest one are silence
LOG_FLOOR = 1e-5  # log(1e-5) = -11.5 is silence

AUDIO_FORMAT = {
    "sample_rate_hz": SAMPLE_RATE_HZ,
    "fft_samples": FFT_SAMPLES,
    "window_samples": WINDOW_SAMPLES,
    "hop_samples": HOP_SAMPLES,
    "mel_bands": MEL_BANDS,
    "low_hz": LOW_HZ,
    "high_hz": HIGH_HZ,
    "log_floor": LOG_FLOOR,
}
"""What checkpoints record of the waves and mels that a run was trained on."""


def frame_count(samples):
    """Return the number of mel frames of `samples` samples (a number, an array or a tensor)."""
    return samples // HOP_SAMPLES
