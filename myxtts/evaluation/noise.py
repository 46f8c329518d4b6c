"""Fixed noises and rooms in which recognisers are measured. They are of other kinds than those of
training.
"""

from collections.abc import Callable, Sequence

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ

SEED = 20_20
KINDS = ("blue", "speech-shaped", "modulated", "hum")
MODULATION_HZ = 4.0  # the rate of syllables
EARLY_S = (0.003, 0.05)  # when the reflections of a room arrive
REFLECTIONS = 12

Distortion = Callable[[np.ndarray, int], np.ndarray]
"""(wave, index of the utterance) -> distorted wave of the same length; float32 [samples] in [-1,
1].
"""


def distortions(snrs_db: Sequence[float], rt60s_s: Sequence[float]) -> dict[str, Distortion]:
    """Return the distortions of a measurement by name: rooms without noise, and noise without
    rooms.
    """
    rooms = {f"room, RT60 {rt60_s:g} s": _in_room(rt60_s) for rt60_s in rt60s_s}
    return rooms | {f"noise, SNR {snr_db:g} dB": _with_noise(snr_db) for snr_db in snrs_db}


def _with_noise(snr_db: float) -> Distortion:
    return lambda wave, index: add_noise(wave, noise(len(wave), index), snr_db)


def _in_room(rt60_s: float) -> Distortion:
    return lambda wave, index: convolve(wave, room_response(rt60_s, index))


def add_noise(wave: np.ndarray, noise: np.ndarray, snr_db: float) -> np.ndarray:
    """Add noise at a signal-to-noise ratio over the whole wave."""
    ratio = np.sum(np.square(wave, dtype=np.float64)) / np.sum(np.square(noise, dtype=np.float64))
    return (wave + noise * np.sqrt(ratio * 10.0 ** (-snr_db / 10.0))).astype(np.float32)


def noise(samples: int, index: int) -> np.ndarray:
    """Return the noise of an utterance, float64 [samples] of any level. KINDS take turns.

    Training has stationary noise whose amplitude falls with frequency, by 6 dB an octave at most,
    and babble. Here blue noise rises by 3 dB an octave; speech-shaped noise falls by 9 dB above 500
    Hz; pink noise is modulated; and a hum has the harmonics of 70 to 200 Hz.
    """
    random, kind = np.random.default_rng([SEED, index]), KINDS[index % len(KINDS)]
    time_s = np.arange(samples) / SAMPLE_RATE_HZ
    if kind == "hum":
        order = np.arange(1, 30)[:, None]
        phase = random.uniform(0.0, 2.0 * np.pi, order.shape)
        return np.sum(
            np.sin(2.0 * np.pi * random.uniform(70.0, 200.0) * order * time_s + phase) / order,
            axis=0,
        )
    spectrum = np.fft.rfft(random.standard_normal(samples))
    hz = np.maximum(np.fft.rfftfreq(samples, 1.0 / SAMPLE_RATE_HZ), 20.0)
    if kind == "blue":
        return np.fft.irfft(spectrum * np.sqrt(hz), samples)
    if kind == "speech-shaped":
        return np.fft.irfft(spectrum * np.maximum(hz / 500.0, 1.0) ** -1.5, samples)
    pink = np.fft.irfft(spectrum / np.sqrt(hz), samples)
    return pink * (
        1.0 + np.cos(2.0 * np.pi * MODULATION_HZ * time_s + random.uniform(0.0, 2.0 * np.pi))
    )


def room_response(rt60_s: float, index: int) -> np.ndarray:
    """Return the impulse response of an utterance's room, float64 [samples].

    Training has tails of noise that begin at once. Here some single reflections come first, and the
    tail, which begins after them, loses its high frequencies. Direct sound and reflections with
    tail have equal energies.
    """
    random = np.random.default_rng([SEED + 1, index])
    samples = round(max(rt60_s, 2.0 * EARLY_S[1]) * SAMPLE_RATE_HZ)
    time_s = np.arange(samples) / SAMPLE_RATE_HZ
    tail = np.convolve(random.standard_normal(samples), [0.25, 0.5, 0.25], "same") * (
        time_s >= EARLY_S[1]
    )
    at = (random.uniform(*EARLY_S, REFLECTIONS) * SAMPLE_RATE_HZ).astype(int)
    tail[at] += random.choice([-3.0, 3.0], REFLECTIONS)
    tail *= 10.0 ** (-3.0 * time_s / rt60_s)
    tail /= np.sqrt(np.sum(np.square(tail)))
    tail[0] += 1.0
    return tail


def convolve(wave: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Return a wave in a room, cut to its length."""
    length = len(wave) + len(response)
    spectrum = np.fft.rfft(wave, length) * np.fft.rfft(response, length)
    return np.fft.irfft(spectrum, length)[: len(wave)].astype(np.float32)
