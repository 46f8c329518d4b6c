"""Reads an audio file of any format as PCM at 22,050 Hz, without TensorFlow.

For files that TensorFlow's operations cannot decode: FLAC, OGG, MP3, 24-bit WAV, several channels,
other sample rates.
"""

from pathlib import Path

import numpy as np
import soundfile
import soxr

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.errors import DataError

MAX_AMPLITUDE = (
    32_768.0  # of floats in the range of 16 bits; channels of 1e38 would overflow in their mean
)
BLOCK_SAMPLES = 65_536  # per channel: all channels of a long recording may not fit into memory
MAX_RECORDING_S = 4 * 3600.0  # a megabyte of FLAC may hold days of silence


def resampled_length(samples, rate_hz):
    """Return the length at 22,050 Hz, rounded half up as by soxr; for integers or int64 arrays."""
    return (2 * samples * SAMPLE_RATE_HZ + rate_hz) // (2 * rate_hz)


def read_pcm(
    path: str | Path, samples: int | None = None, max_s: float = MAX_RECORDING_S
) -> np.ndarray:
    """Read a file as mono at 22,050 Hz: channels are averaged, resampled by soxr and clipped.

    Args:
        path: the file.
        samples: expected length after resampling; None turns the check off.
        max_s: seconds to read; nothing that is behind them is decoded.

    Returns:
        int16 [samples].

    Raises:
        DataError: the file cannot be read, contains a NaN or an infinity, or does not have the
            expected length; the length may differ by one sample after resampling.
    """
    try:
        with open(path, "rb") as file:  # its errors are clearer than libsndfile's "System error"
            mono, rate_hz = _read(file.fileno(), samples, max_s)
    except _OtherLength as other:
        raise DataError(_length_message(path, other.samples, samples)) from None
    except (soundfile.LibsndfileError, OSError) as error:
        reason = (
            error.error_string.rstrip(".")
            if isinstance(error, soundfile.LibsndfileError)
            else error.strerror
        )
        raise DataError(f"{path} cannot be read: {reason}") from error
    if not np.isfinite(mono).all():
        raise DataError(f"{path} contains samples that are not finite")
    if rate_hz != SAMPLE_RATE_HZ and len(mono):
        mono = soxr.resample(mono, rate_hz, SAMPLE_RATE_HZ)
    pcm = to_pcm(mono)
    if samples is None:
        return pcm
    if abs(len(pcm) - samples) > (rate_hz != SAMPLE_RATE_HZ):
        raise DataError(_length_message(path, len(pcm), samples))
    return np.pad(pcm[:samples], (0, samples - min(len(pcm), samples)))


class _OtherLength(Exception):
    """The header promises another length than the expected one, perhaps more than the
    memory takes.
    """

    def __init__(self, samples: int):
        super().__init__()
        self.samples = samples


def _read(file: int, samples: int | None, max_s: float) -> tuple[np.ndarray, int]:
    """Return the mean of the channels of a file descriptor, float32 [samples], and its sample rate.

    Samples are limited to MAX_AMPLITUDE; the mean of a NaN or an infinity is not finite.
    """
    with soundfile.SoundFile(file, closefd=False) as sound:
        promised = int(resampled_length(sound.frames, sound.samplerate))
        if samples is not None and abs(promised - samples) > 1:
            raise _OtherLength(promised)
        frames = min(sound.frames, round(max_s * sound.samplerate))
        mono, read = np.empty(frames, np.float32), 0
        while len(
            block := sound.read(min(BLOCK_SAMPLES, frames - read), dtype="float32", always_2d=True)
        ):
            finite = np.isfinite(block)
            block = (
                np.clip(block, -MAX_AMPLITUDE, MAX_AMPLITUDE)
                if finite.all()
                else np.where(finite, 0.0, np.nan)
            )
            mono[read : read + len(block)] = block.mean(axis=1)
            read += len(block)
        return mono[:read], sound.samplerate


def _length_message(path: str | Path, found: int, expected: int | None) -> str:
    return (
        f"{path} has {found} samples at {SAMPLE_RATE_HZ} Hz, but had {expected} when the manifest"
        " was made"
    )


def to_pcm(wave: np.ndarray) -> np.ndarray:
    """Round a wave in [-1, 1] to 16 bits, int16 [samples]; samples beyond the range are clipped."""
    return np.clip(np.rint(wave * 32768.0), -32768, 32767).astype(np.int16)


def read_wave(
    path: str | Path, samples: int | None = None, max_s: float = MAX_RECORDING_S
) -> np.ndarray:
    """Read a file as by `read_pcm`, but as float32 [samples] in [-1, 1]."""
    return read_pcm(path, samples, max_s).astype(np.float32) / 32768.0
