"""Audio format of a process: sample rate, and the mel that vocoders of this rate take.

FFT, window and hop are equal at all rates: HiFi-GAN has these values at 22.05 kHz (Kong et al.
2020) and 16 kHz (SpeechBrain), BigVGAN (Lee et al. 2023) and Vocos (Siuzdak 2023) at 24 kHz. A
process has one rate, so that networks, plans and waves cannot differ. This module does not import
TensorFlow, because the manifest and the batch plan count frames with it.
"""

from math import log
from typing import Any

from myxtts.base.errors import ConfigError

SAMPLE_RATE_HZ = 22_050  # where no run, voice or setting names another
# Bands of the mel, and the upper end of the highest, by sample rate.
PRESETS = {16_000: (80, 8_000.0), SAMPLE_RATE_HZ: (80, 8_000.0), 24_000: (100, 12_000.0)}
FFT_SAMPLES = 1024
WINDOW_SAMPLES = 1024
HOP_SAMPLES = 256  # 11.6 ms at 22.05 kHz
LOW_HZ = 0.0
# 384 reflected on each side, so that frames = samples // 256.
PAD_SAMPLES = (FFT_SAMPLES - HOP_SAMPLES) // 2
# A log-mel is the natural logarithm of a magnitude.
DECIBELS_PER_NEPER = 20.0 / log(10.0)
TOP_DB = 48.0  # frames further below the loudest one are silence
LOG_FLOOR = 1e-5  # log(1e-5) = -11.5 is silence

_used: tuple[int, str] | None = None


def use_sample_rate(rate_hz: int, owner: str) -> None:
    """Set the sample rate of this process, which `owner`, such as a run, has.

    Raises ConfigError if the process has another rate already: from an earlier owner, or because
    something was computed at SAMPLE_RATE_HZ.
    """
    global _used
    if rate_hz not in PRESETS:
        known = ", ".join(map(str, PRESETS))
        raise ConfigError(f"{owner} has a sample rate of {rate_hz} Hz, but must have {known}.")
    _used = _used or (rate_hz, owner)
    used_hz, first = _used
    if rate_hz != used_hz:
        raise ConfigError(
            f"{owner} has a sample rate of {rate_hz} Hz, but {first} has {used_hz} Hz. Give runs,"
            f" vocoders and voices of one rate, or train one of them again with --sample-rate."
        )


def sample_rate_hz() -> int:
    """Return the sample rate of this process; the default is fixed by the first call."""
    if _used is None:
        use_sample_rate(SAMPLE_RATE_HZ, "this process")
    assert _used is not None
    return _used[0]


def mel_bands() -> int:
    return PRESETS[sample_rate_hz()][0]


def high_hz() -> float:
    """Return the upper end of the highest mel band."""
    return PRESETS[sample_rate_hz()][1]


def frames_in(seconds: float) -> int:
    return round(seconds * sample_rate_hz() / HOP_SAMPLES)


def audio_format(rate_hz: int) -> dict[str, Any]:
    """Return what checkpoints record of the waves and mels of runs at a sample rate."""
    bands, high = PRESETS[rate_hz]
    return {
        "sample_rate_hz": rate_hz,
        "fft_samples": FFT_SAMPLES,
        "window_samples": WINDOW_SAMPLES,
        "hop_samples": HOP_SAMPLES,
        "mel_bands": bands,
        "low_hz": LOW_HZ,
        "high_hz": high,
        "log_floor": LOG_FLOOR,
    }


def frame_count(samples):
    """Return the number of mel frames of `samples` samples (a number, an array or a tensor)."""
    return samples // HOP_SAMPLES
