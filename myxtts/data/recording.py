"""A recording that a user names, outside any corpus. Free of TensorFlow."""

from pathlib import Path

import numpy as np

from myxtts.data.audio_file import read_wave
from myxtts.data.audio_header import UnusableAudio, check_finite, read_header
from myxtts.errors import DataError


def check_recording(path: Path, called: str, shortest_s: float, advice: str) -> None:
    """Look at the header of a recording, and at the samples where these may not be numbers.

    Args:
        called: what it is to the user, for the message, such as "reference".
        advice: what to do instead, as the end of the message.

    Raises:
        DataError: it is missing, unreadable or shorter than `shortest_s`.
    """
    try:
        header = read_header(str(path))
        if header.floating:
            check_finite(str(path))
    except UnusableAudio as error:
        raise DataError(f"the {called} {path} cannot be used: {str(error).rstrip('.')}. {advice}") from error
    if header.samples < shortest_s * header.rate_hz:
        raise DataError(f"the {called} {path} has {header.samples / header.rate_hz:.2f} s. {advice}")


def read_recording(path: Path, called: str, shortest_s: float, advice: str) -> np.ndarray:
    """float32 [samples] in [-1, 1] at 22,050 Hz.

    Raises:
        DataError: as `check_recording`, or its samples cannot be read.
    """
    check_recording(path, called, shortest_s, advice)
    try:
        return read_wave(path)
    except DataError as error:
        raise DataError(f"{error}. {advice}") from error
