"""The recordings whose voice is to speak."""

from pathlib import Path

import numpy as np

from myxtts.data.recording import check_recording, read_recording

SHORTEST_REFERENCE_S = 0.5
_ADVICE = f"Give audio files of the speaker by --reference, each with {SHORTEST_REFERENCE_S} s of speech or more."


def check_reference(path: Path) -> None:
    """Look at a reference without reading more than is needed; raises DataError as `check_recording` does."""
    check_recording(path, "reference", SHORTEST_REFERENCE_S, _ADVICE)


def read_reference(path: Path, longest_samples: int) -> np.ndarray:
    """float32 [samples] of a reference's beginning, at 22,050 Hz; raises DataError as `read_recording` does."""
    return read_recording(path, "reference", SHORTEST_REFERENCE_S, _ADVICE)[:longest_samples]
