"""Loudness by ITU-R BS.1770-4, as EBU R 128 has it: filters, gates, and the loudness of one wave.

Needs NumPy alone; `loudness` has waves in batches, on a device.
"""

import numpy as np

# BS.1770-4, annex 1: tables 1 and 2, numerators and denominators of its two filters at 48 kHz.
FILTER_RATE_HZ = 48_000
SHELF = (
    (1.53512485958697, -2.69169618940638, 1.19839281085285),
    (1.0, -1.69065929318241, 0.73248077421585),
)
HIGH_PASS = (1.0, -2.0, 1.0), (1.0, -1.99004745483398, 0.99007225036621)
OFFSET_DB = -0.691
# Blocks overlap by three quarters.
BLOCK_S, BLOCK_HOPS = 0.4, 4
SILENCE_LUFS = -70.0
RELATIVE_GATE_DB = -10.0
# In which the response of the high pass falls by 170 dB.
MARGIN_S = 0.2


def loudness(wave: np.ndarray, rate_hz: int) -> float:
    """Return the integrated loudness of a wave in LUFS; -inf of silence."""
    size = 2 ** int(np.ceil(np.log2(len(wave) + MARGIN_S * rate_hz)))
    hz = np.minimum(np.fft.rfftfreq(size, 1 / rate_hz), FILTER_RATE_HZ / 2)
    gain = np.sqrt(squared_response(np.square(np.sin(np.pi * hz / FILTER_RATE_HZ))))
    weighted = np.fft.irfft(np.fft.rfft(wave, size) * gain)[: len(wave)]
    # A wave of less than a block is one block, and the last one may lack half a hop.
    block = min(round(BLOCK_S * rate_hz), len(wave))
    hop = max(block // BLOCK_HOPS, 1)
    sums = np.cumsum(np.pad(np.square(weighted), (1, hop // 2)))
    power = (sums[block::hop] - sums[:-block:hop]) / block
    power = power[power > power_of(SILENCE_LUFS)]
    if not len(power):
        return -np.inf
    loud = power[power > power.mean() * 10.0 ** (RELATIVE_GATE_DB / 10.0)]
    return float(OFFSET_DB + 10.0 * np.log10(loud.mean()))


def squared_response(half):
    """Return |H|² of both filters, given sin² of half the angle of a frequency at 48 kHz.

    1 - cos of small angles would be rounded to 0. For arrays of NumPy and tensors alike.
    """
    return _squared_response(SHELF, half) * _squared_response(HIGH_PASS, half)


def _squared_response(coefficients: tuple, half):
    squares = []
    for a, b, c in coefficients:
        # |a + b z + c z²|² = (a + b + c)² - 4 (ab + bc + 4 ac) s + 16 ac s², s = sin² (ω / 2)
        constant, linear = (a + b + c) ** 2, -4.0 * (a * b + b * c + 4.0 * a * c)
        squares.append(constant + half * (linear + 16.0 * a * c * half))
    return squares[0] / squares[1]


def power_of(lufs: float) -> float:
    return 10.0 ** ((lufs - OFFSET_DB) / 10.0)
