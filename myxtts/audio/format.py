"""The one audio format of the project: the field's 22.05 kHz mel convention.

HiFi-GAN (Kong et al. 2020) and Matcha-TTS use these numbers, so public vocoders fit the mels.
Free of TensorFlow: the manifest and the plan count frames with it.
"""

from math import log

SAMPLE_RATE_HZ = 22_050
FFT_SAMPLES = 1024
WINDOW_SAMPLES = 1024
HOP_SAMPLES = 256  # 11.6 ms
MEL_BANDS = 80
LOW_HZ = 0.0
HIGH_HZ = 8_000.0
PAD_SAMPLES = (FFT_SAMPLES - HOP_SAMPLES) // 2  # 384 reflected on each side: frames = samples // 256
DECIBELS_PER_NEPER = 20.0 / log(10.0)  # the log-mel is the natural logarithm of a magnitude
TOP_DB = 48.0  # how far a frame of speech may be below the loudest one
LOG_FLOOR = 1e-5  # log(1e-5) = -11.5 is silence


def frame_count(samples):
    """Mel frames of a wave of `samples` samples; works on numbers, arrays and tensors."""
    return samples // HOP_SAMPLES
