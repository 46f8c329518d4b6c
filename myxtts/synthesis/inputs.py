"""What a synthesis is given: recordings of the speaker to imitate, and a language."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.data.audio_file import check_recording, read_recording
from myxtts.errors import DataError
from myxtts.text.languages import canonical_code

MIN_REFERENCE_S = 0.5
# More than the resampling filter sees, so that the cut does not change the samples before it.
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


def choose_language(language: str | None, trained: Sequence[str]) -> str:
    """Return the requested language, or the only trained one if none is requested.

    Raises:
        DataError: the run was not trained on the language, or none was requested and the run has
            several.
    """
    if language is None and len(trained) == 1:
        return trained[0]
    code = canonical_code(language or "")
    same = [name for name in trained if canonical_code(name) == code]
    trained_as = language if language in trained else next(iter(same), None)
    if trained_as is None:
        requested = "no language" if language is None else f"language '{language}'"
        raise DataError(
            f"{requested} was given, but this run was trained on {', '.join(trained)}. "
            "Give one of these with --language."
        )
    return trained_as
