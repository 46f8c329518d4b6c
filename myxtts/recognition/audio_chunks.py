"""Long waves cut, and waves of many lengths put together, so that memory and shapes are bounded. Free of TensorFlow."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ

LONGEST_S = 20.0
PADDED_S = (2.5, 5.0, 10.0, LONGEST_S)  # lengths that pieces are padded to
BATCH_S = 80.0  # padded, of one batch
PAUSE_S = 0.2  # a place is as quiet as this much around it


def cut(wave: np.ndarray) -> list[np.ndarray]:
    """The parts of a wave, each of 6.6 to 20 s: a longer one is parted at the quietest place of its middle third.

    Args:
        wave: float32 [samples]; of up to 20 s it is one part.
    """
    if len(wave) <= LONGEST_S * SAMPLE_RATE_HZ:
        return [wave]
    third = len(wave) // 3
    place = third + quietest(wave[third : 2 * third])
    return cut(wave[:place]) + cut(wave[place:])


def quietest(wave: np.ndarray) -> int:
    """The sample in the middle of the 0.2 s with the least power; of several such places the middle one."""
    frames = wave[: len(wave) // HOP_SAMPLES * HOP_SAMPLES].reshape(-1, HOP_SAMPLES)
    pause = round(PAUSE_S * SAMPLE_RATE_HZ / HOP_SAMPLES)
    power = np.convolve(np.square(frames).mean(axis=1), np.ones(pause), "valid")
    places = np.flatnonzero(power == power.min())
    return (2 * int(places[len(places) // 2]) + pause) * HOP_SAMPLES // 2


def batches(lengths: Sequence[int]) -> Iterator[tuple[np.ndarray, int]]:
    """Which pieces go together: int [rows] of places in `lengths`, and the samples that they are padded to.

    Args:
        lengths: samples of each piece, at most 20 s.
    """
    bounds = [round(seconds * SAMPLE_RATE_HZ) for seconds in PADDED_S]
    bucket = np.searchsorted(bounds, lengths)
    for number, padded in enumerate(bounds):
        places = np.flatnonzero(bucket == number)
        rows = round(BATCH_S / PADDED_S[number])
        yield from ((places[first : first + rows], padded) for first in range(0, len(places), rows))


def groups(waves: Iterable[np.ndarray], most_samples: int) -> Iterator[list[np.ndarray]]:
    """Waves as they come, as many at a time as together have at most so many samples, and one at least."""
    group: list[np.ndarray] = []
    for wave in waves:
        if group and sum(map(len, group)) + len(wave) > most_samples:
            yield group
            group = []
        group.append(wave)
    if group:
        yield group
