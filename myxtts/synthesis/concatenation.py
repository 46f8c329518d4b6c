"""Where one sentence ends and the next begins: a pause, and no click. Free of TensorFlow."""

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.text.sentences import Boundary

FADE_S = 0.005
# Silence between two pieces in all, what they end and begin with included. espeak-ng makes 0.15 s at a comma, 0.30 s
# between sentences and 0.53 s between paragraphs at its own 175 words a minute; people who read aloud take longer.
PAUSES_S = {Boundary.CLAUSE: 0.15, Boundary.SENTENCE: 0.4, Boundary.PARAGRAPH: 0.8}
QUIET = 0.01  # of a wave's peak: -40 dB


def fade_ends(wave: np.ndarray) -> np.ndarray:
    """The wave, with its first and last 5 ms rising from 0 and falling to 0 as a raised cosine."""
    samples = min(round(FADE_S * SAMPLE_RATE_HZ), len(wave) // 2)
    if not samples:
        return np.zeros_like(wave)
    rise = (0.5 - 0.5 * np.cos(np.pi * np.arange(samples) / samples)).astype(wave.dtype)
    return np.concatenate([wave[:samples] * rise, wave[samples:-samples], wave[-samples:] * rise[::-1]])


def pause_between(wave: np.ndarray, end: Boundary, following: np.ndarray, speed: float) -> np.ndarray:
    """The zeros to put between two waves, the first of which ends `end`: what their own silence leaves of the pause."""
    silent = _silent_samples(wave[::-1]) + _silent_samples(following)
    wanted = round(PAUSES_S[end] * SAMPLE_RATE_HZ / speed)
    return np.zeros(max(wanted - silent, 0), wave.dtype)


def _silent_samples(wave: np.ndarray) -> int:
    """Samples before the first one that is heard; all of a silent wave."""
    loudness = np.abs(wave)
    heard = loudness > QUIET * loudness.max(initial=0.0)
    return int(heard.argmax()) if heard.any() else len(wave)
