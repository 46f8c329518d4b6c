"""Reads a single recording that does not belong to a corpus, without TensorFlow."""

from pathlib import Path

import numpy as np

from myxtts.data.audio_file import MAX_RECORDING_S, read_wave
from myxtts.data.audio_header import UnusableAudio, check_finite, read_header
from myxtts.errors import DataError


def check_recording(path: Path, role: str, min_s: float, advice: str) -> None:
    """Check the header of a recording, and that floating-point samples are finite.

    Args:
        role: of the recording, for the message, such as "reference".
        min_s: minimum length.
        advice: end of the message.

    Raises:
        DataError: the recording is missing, unreadable, too short or too long.
    """
    try:
        header = read_header(str(path))
        length_s = header.samples / header.rate_hz
        if length_s < min_s:
            raise DataError(f"the {role} {path} has {length_s:.2f} s. {advice}")
        if length_s > MAX_RECORDING_S:
            raise DataError(
                f"the {role} {path} has {length_s / 3600:,.1f} h, but may have"
                f" {MAX_RECORDING_S / 3600:g} h. Split it."
            )
        if header.floating:
            check_finite(str(path))
    except UnusableAudio as error:
        raise DataError(
            f"the {role} {path} cannot be used: {str(error).rstrip('.')}. {advice}"
        ) from error


def read_recording(
    path: Path, role: str, min_s: float, advice: str, max_s: float = MAX_RECORDING_S
) -> np.ndarray:
    """Read a recording as float32 [samples] in [-1, 1] at 22,050 Hz.

    Args:
        max_s: seconds to read, from the beginning.

    Raises:
        DataError: see `check_recording`; or the samples cannot be read.
    """
    check_recording(path, role, min_s, advice)
    try:
        return read_wave(path, max_s=max_s)
    except DataError as error:
        raise DataError(f"{error}. {advice}") from error
