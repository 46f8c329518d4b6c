"""Reference recordings of the speaker to imitate."""

from pathlib import Path

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.data.audio_file import check_recording, read_recording

MIN_REFERENCE_S = 0.5
# more than the resampling filter sees, so that the cut does not change the samples before it
FILTER_S = 1.0
_ADVICE = (
    f"Give audio files of the speaker with --reference, each with at least {MIN_REFERENCE_S} s of"
    " speech."
)


def check_reference(path: Path) -> None:
    """Check a reference by its header; raises DataError as `check_recording` does."""
    check_recording(path, "reference", MIN_REFERENCE_S, _ADVICE)


def read_reference(path: Path, max_samples: int) -> np.ndarray:
    """Return a reference's first samples, float32 at 22,050 Hz; raises DataError."""
    max_s = max_samples / SAMPLE_RATE_HZ + FILTER_S
    return read_recording(path, "reference", MIN_REFERENCE_S, _ADVICE, max_s)[:max_samples]
