"""Words cut out of waves and said twice in them: what a measure of skipped and repeated words has to find."""

import random
from collections.abc import Sequence

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.evaluation.boundaries import Phoneme, word_spans


def plant(waves: Sequence[np.ndarray], spoken: Sequence[Sequence[Phoneme]]) -> tuple[list[np.ndarray], ...]:
    """Each wave without a word of its own, and each with one said twice; the words are drawn at random.

    Args:
        waves: float32 [samples] each.
        spoken: the phonemes of each; one word at least.
    """
    cut, doubled = [], []
    for number, (wave, phonemes) in enumerate(zip(waves, spoken, strict=True)):
        start, end = (round(s * SAMPLE_RATE_HZ) for s in drawn_word(number, word_spans(phonemes)))
        cut.append(np.concatenate([wave[:start], wave[end:]]))
        doubled.append(np.concatenate([wave[:end], wave[start:]]))
    return cut, doubled


def drawn_word(number: int, spans: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """One of the words of utterance `number`, always the same."""
    return random.Random(number).choice(spans)
