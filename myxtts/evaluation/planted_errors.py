"""Waves with one word deleted or inserted: a test of the metrics that count deletions and insertions."""

import random
from collections.abc import Sequence

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.evaluation.boundaries import Phoneme, word_spans


def plant_errors(
    waves: Sequence[np.ndarray], alignments: Sequence[Sequence[Phoneme]]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return each wave without one random word, and each wave with that word said twice.

    Args:
        waves: float32 [samples] each.
        alignments: the phonemes of each wave, with at least one word.
    """
    deleted, inserted = [], []
    for number, (wave, phonemes) in enumerate(zip(waves, alignments, strict=True)):
        start, end = (round(s * SAMPLE_RATE_HZ) for s in random_word(number, word_spans(phonemes)))
        deleted.append(np.concatenate([wave[:start], wave[end:]]))
        inserted.append(np.concatenate([wave[:end], wave[start:]]))
    return deleted, inserted


def random_word(number: int, spans: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the span of a word of utterance `number`, always the same one."""
    return random.Random(number).choice(spans)
