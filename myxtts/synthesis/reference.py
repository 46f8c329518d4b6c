"""The recordings whose voice is to speak."""

from pathlib import Path

import numpy as np

from myxtts.data.header import UnusableAudio, read_header
from myxtts.data.wave_file import read_wave
from myxtts.errors import DataError

SHORTEST_REFERENCE_S = 0.5
_ADVICE = f"Give audio files of the speaker by --reference, each with {SHORTEST_REFERENCE_S} s of speech or more."


def check_reference(path: Path) -> None:
    """Look at the header of a reference.

    Raises:
        DataError: it is missing, unreadable or shorter than half a second.
    """
    try:
        header = read_header(str(path))
    except UnusableAudio as error:
        raise DataError(f"the reference {path} cannot be used: {error}. {_ADVICE}") from error
    if header.samples < SHORTEST_REFERENCE_S * header.rate_hz:
        raise DataError(f"the reference {path} has {header.samples / header.rate_hz:.2f} s. {_ADVICE}")


def read_reference(path: Path, longest_samples: int) -> np.ndarray:
    """float32 [samples] of a reference's beginning, at 22,050 Hz.

    Raises:
        DataError: as `check_reference`, or its samples cannot be read.
    """
    check_reference(path)
    try:
        return read_wave(path)[:longest_samples]
    except DataError as error:
        raise DataError(f"{error}. {_ADVICE}") from error
