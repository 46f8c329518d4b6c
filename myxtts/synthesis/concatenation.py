"""Concatenation of sentences: pauses between them, and no clicks. Does not import TensorFlow."""

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.text.sentences import Boundary

FADE_S = 0.005
# Total silence between two chunks, including the silence at their own ends. espeak-ng makes 0.15 s
# at a comma, 0.30 s between sentences and 0.53 s between paragraphs at its default of 175 words per
# minute; human readers take longer.
PAUSES_S = {Boundary.CLAUSE: 0.15, Boundary.SENTENCE: 0.4, Boundary.PARAGRAPH: 0.8}
SILENCE_LEVEL = 0.01  # of the peak of a wave: -40 dB


def fade_ends(wave: np.ndarray) -> np.ndarray:
    """Fade the first and the last 5 ms of a wave in and out with a raised cosine."""
    samples = min(round(FADE_S * SAMPLE_RATE_HZ), len(wave) // 2)
    if not samples:
        return np.zeros_like(wave)
    rise = (0.5 - 0.5 * np.cos(np.pi * np.arange(samples) / samples)).astype(wave.dtype)
    return np.concatenate(
        [wave[:samples] * rise, wave[samples:-samples], wave[-samples:] * rise[::-1]]
    )


def pause_between(
    wave: np.ndarray, boundary: Boundary, following: np.ndarray, speed: float
) -> np.ndarray:
    """Return the zeros between two waves: the boundary's pause minus their own silence."""
    silent = _leading_silence(wave[::-1]) + _leading_silence(following)
    pause = round(PAUSES_S[boundary] * SAMPLE_RATE_HZ / speed)
    return np.zeros(max(pause - silent, 0), wave.dtype)


def _leading_silence(wave: np.ndarray) -> int:
    """Return the number of samples before the first audible one; all samples of a silent wave."""
    level = np.abs(wave)
    audible = level > SILENCE_LEVEL * level.max(initial=0.0)
    return int(audible.argmax()) if audible.any() else len(wave)
