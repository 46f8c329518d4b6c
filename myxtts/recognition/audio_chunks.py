"""Chunks and batches of waves, which bound memory and the number of shapes. No TensorFlow."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ

MAX_CHUNK_S = 20.0
# Chunks are padded to one of these lengths.
BUCKETS_S = (2.5, 5.0, 10.0, MAX_CHUNK_S)
BATCH_S = 80.0  # padded seconds of a batch
# Length over which the power of a pause is averaged.
PAUSE_S = 0.2


def split_wave(wave: np.ndarray) -> list[np.ndarray]:
    """Split a wave into chunks of up to 20 s, at the quietest point of the middle third.

    A wave of up to 20 s is one chunk; the chunks of a longer one have at least 6.6 s.
    """
    if len(wave) <= MAX_CHUNK_S * SAMPLE_RATE_HZ:
        return [wave]
    third = len(wave) // 3
    point = third + quietest_point(wave[third : 2 * third])
    return split_wave(wave[:point]) + split_wave(wave[point:])


def quietest_point(wave: np.ndarray) -> int:
    """Return the middle sample of the 0.2 s with the least power."""
    frames = wave[: len(wave) // HOP_SAMPLES * HOP_SAMPLES].reshape(-1, HOP_SAMPLES)
    pause = round(PAUSE_S * SAMPLE_RATE_HZ / HOP_SAMPLES)
    power = np.convolve(np.square(frames).mean(axis=1), np.ones(pause), "valid")
    minima = np.flatnonzero(power == power.min())
    return (2 * int(minima[len(minima) // 2]) + pause) * HOP_SAMPLES // 2


def bucket_batches(lengths: Sequence[int]) -> Iterator[tuple[np.ndarray, int]]:
    """Batch chunks of similar lengths.

    Args:
        lengths: samples of each chunk, at most 20 s.

    Yields:
        The indices of the chunks of a batch, int [rows], and the number of samples to pad them to.
    """
    bounds = [round(seconds * SAMPLE_RATE_HZ) for seconds in BUCKETS_S]
    bucket = np.searchsorted(bounds, lengths)
    for number, padded in enumerate(bounds):
        indices = np.flatnonzero(bucket == number)
        rows = round(BATCH_S / BUCKETS_S[number])
        yield from (
            (indices[first : first + rows], padded) for first in range(0, len(indices), rows)
        )


def group_waves(waves: Iterable[np.ndarray], max_samples: int) -> Iterator[list[np.ndarray]]:
    """Group consecutive waves of at most `max_samples` in total; longer waves stand alone."""
    group: list[np.ndarray] = []
    for wave in waves:
        if group and sum(map(len, group)) + len(wave) > max_samples:
            yield group
            group = []
        group.append(wave)
    if group:
        yield group
