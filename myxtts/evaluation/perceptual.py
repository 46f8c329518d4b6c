"""PESQ and STOI of a copy of a recording, by two optional packages. No TensorFlow."""

import warnings
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import soxr

from myxtts.audio.format import SAMPLE_RATE_HZ

PACKAGES = {"pesq_wb": "pesq", "stoi": "pystoi"}  # by score
PESQ_RATE_HZ = 16_000
MIN_PESQ_S = 0.25
# The package has room for 50 stretches of speech; each takes 0.4 s or more with its pause. The 51st
# crashes Python.
MAX_PESQ_S = 20.0
MIN_STOI_S = 30 * 128 / 10_000  # its 30 frames, without silent ones
NEEDS = {
    "pesq_wb": (
        f"needs {MIN_PESQ_S:g} to {MAX_PESQ_S:g} s with speech, and a copy that is not silent"
    ),
    "stoi": f"needs {MIN_STOI_S:.1f} s of speech, pauses not counted",
}


def pesq_wb(recording: np.ndarray, copy: np.ndarray) -> float | None:
    """Return the wideband PESQ (ITU-T P.862.2) of a copy, from 1.0 to 4.64, by the package `pesq`.

    Both waves are resampled to 16 kHz by soxr.

    Args:
        recording, copy: float32 [samples] in [-1, 1] at 22,050 Hz, of the same length.

    Returns:
        None for waves that PESQ is not defined for: see NEEDS.
    """
    from pesq import BufferTooShortError, NoUtterancesError, pesq

    if len(recording) > MAX_PESQ_S * SAMPLE_RATE_HZ or not (recording.any() and copy.any()):
        return None
    waves = (soxr.resample(wave, SAMPLE_RATE_HZ, PESQ_RATE_HZ) for wave in (recording, copy))
    try:
        return float(pesq(PESQ_RATE_HZ, *waves, "wb"))
    except (BufferTooShortError, NoUtterancesError):
        return None


def stoi(recording: np.ndarray, copy: np.ndarray) -> float | None:
    """Return the short-time objective intelligibility (Taal et al. 2011) of a copy, up to 1, by the
    package `pystoi`.

    The package resamples both waves to 10 kHz and leaves out frames 40 dB below the loudest frame
    of the recording.

    Args:
        recording, copy: as for `pesq_wb`.

    Returns:
        None for recordings that are too short: see NEEDS.
    """
    import pystoi

    if len(recording) < MIN_STOI_S * SAMPLE_RATE_HZ or not recording.any():
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Not enough STFT frames", RuntimeWarning)
        try:
            return float(pystoi.stoi(recording, copy, SAMPLE_RATE_HZ))
        except RuntimeWarning:
            return None


PerceptualScores = dict[str, Callable[[np.ndarray, np.ndarray], float | None]]
"""By the keys of PACKAGES."""

SCORES: PerceptualScores = {"pesq_wb": pesq_wb, "stoi": stoi}


def installed_scores() -> PerceptualScores:
    """Return the scores of PACKAGES whose package is installed, by key."""
    return {name: score for name, score in SCORES.items() if find_spec(PACKAGES[name])}
