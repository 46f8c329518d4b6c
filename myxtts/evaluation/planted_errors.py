"""Waves with one word deleted or inserted: a test of the metrics that count deletions and
insertions.
"""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from myxtts.audio.format import FFT_SAMPLES, SAMPLE_RATE_HZ
from myxtts.evaluation.acoustic_metrics import AcousticFeatures, utterance_metrics
from myxtts.evaluation.boundaries import Phoneme, word_spans
from myxtts.evaluation.held_out import Utterance
from myxtts.evaluation.speech import acoustic_features


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


def planted_errors_note(
    utterances: Sequence[Utterance],
    recorded: Sequence[AcousticFeatures],
    copies: Sequence[np.ndarray],
    alignments: Mapping[str, list[Phoneme]],
    device: str,
) -> str:
    """Return a note on how many words deleted from copy synthesis, or inserted into it, are
    detected.
    """
    phonemes = [alignments.get(Path(utterance.id).stem, []) for utterance in utterances]
    rows = [
        row
        for row, (copy, spans) in enumerate(zip(copies, map(word_spans, phonemes), strict=True))
        if spans
        and len(copy) - SAMPLE_RATE_HZ * max(end_s - start_s for start_s, end_s in spans)
        > FFT_SAMPLES
    ]
    if not rows:
        return (
            "the detection of deletions and insertions is not tested: no alignments.jsonl has the"
            " times of words, or nothing is left without one word"
        )
    deleted, inserted = (
        acoustic_features(waves, device)
        for waves in plant_errors([copies[row] for row in rows], [phonemes[row] for row in rows])
    )
    deletions, insertions = (
        [
            utterance_metrics(recorded[row], features)
            for row, features in zip(rows, column, strict=True)
        ]
        for column in (deleted, inserted)
    )
    return (
        f"detected are {sum(metrics.has_deletion for metrics in deletions)} of {len(rows)} copies"
        f" with a word deleted, and {sum(metrics.has_insertion for metrics in insertions)} of"
        f" {len(rows)} with a word inserted"
    )
