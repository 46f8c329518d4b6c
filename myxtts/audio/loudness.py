"""Loudness of speech by ITU-R BS.1770-4, as EBU R 128 has it, and waves of an equal loudness.

Shape legend: B rows, S samples, K bins.
"""

import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.spectral import frequency_grid, scaled
from myxtts.portable_ops import on_host

# BS.1770-4, annex 1: tables 1 and 2, numerators and denominators of its two filters at 48 kHz.
FILTER_RATE_HZ = 48_000
SHELF = (
    (1.53512485958697, -2.69169618940638, 1.19839281085285),
    (1.0, -1.69065929318241, 0.73248077421585),
)
HIGH_PASS = (1.0, -2.0, 1.0), (1.0, -1.99004745483398, 0.99007225036621)
OFFSET_DB = -0.691
BLOCK_HOPS = 4
# Blocks of 0.4 s overlap by three quarters.
HOP = SAMPLE_RATE_HZ // 10
BLOCK = BLOCK_HOPS * HOP
SILENCE_LUFS = -70.0
RELATIVE_GATE_DB = -10.0
# 0.2 s, in which the response of the high pass falls by 170 dB.
MARGIN_SAMPLES = 4410


def with_loudness(wave, lufs: float | None, samples=None):
    """Scale each row to a loudness, or less if its largest sample would exceed 1; None: not at all.

    float32 [B, S], 0 behind the real samples of each row, LUFS, and these samples, int32 [B], or
    None for all -> float32 [B, S]. A row of silence, below -70 LUFS, stays as it is.
    """
    if lufs is None:
        return wave
    if samples is None:
        samples = tf.fill([tf.shape(wave)[0]], tf.shape(wave)[1])
    power = gated_power(wave, samples)
    peak = tf.reduce_max(tf.abs(wave), axis=1)
    wanted = tf.sqrt(tf.math.divide_no_nan(_power(lufs), power))
    gain = tf.where(power > 0.0, tf.minimum(wanted, tf.math.divide_no_nan(1.0, peak)), 1.0)
    return wave * gain[:, None]


def loudness(wave, samples):
    """Return the integrated loudness of each row in LUFS, float32 [B]; -inf of silence."""
    return OFFSET_DB + 10.0 * tf.math.log(gated_power(wave, samples)) / float(np.log(10.0))


def gated_power(wave, samples):
    """Return the mean power of the blocks of each row that are no pauses, float32 [B]; 0 of none.

    As in pyloudnorm, the last block may lack half a hop. A row of less than a block is one block.
    """
    weighted = k_weighted(wave)
    real = tf.sequence_mask(samples, tf.shape(wave)[1])
    padding = BLOCK - 1 + (1 - tf.shape(wave)[1]) % HOP
    square = tf.pad(tf.where(real, tf.square(weighted), 0.0), [[0, 0], [0, padding]])
    hops = tf.reduce_sum(tf.reshape(square, [tf.shape(wave)[0], -1, HOP]), axis=2)
    count = tf.shape(hops)[1] - BLOCK_HOPS + 1
    blocks = tf.add_n([hops[:, i : i + count] for i in range(BLOCK_HOPS)])
    with on_host():
        length = tf.cast(samples, tf.float32)
        last = tf.cast(tf.maximum(tf.round((length - BLOCK) / HOP), 0.0), tf.int32)
    power = blocks / tf.clip_by_value(length, 1.0, float(BLOCK))[:, None]
    loud = tf.sequence_mask(last + 1, count) & (power > _power(SILENCE_LUFS))
    gate = _mean(power, loud) * 10.0 ** (RELATIVE_GATE_DB / 10.0)
    return _mean(power, loud & (power > gate[:, None]))


def k_weighted(wave):
    """Filter waves [B, S] as loudness is heard, without delay.

    The magnitudes are those of the standard's filters, of its sample rate, at each frequency.
    """
    length, hz = frequency_grid(tf.shape(wave)[1], MARGIN_SAMPLES)
    gain = tf.sqrt(_squared_response(SHELF, hz) * _squared_response(HIGH_PASS, hz))
    spectrum = scaled(tf.signal.rfft(wave, [length]), gain)
    return tf.signal.irfft(spectrum, [length])[:, : tf.shape(wave)[1]]


def _squared_response(coefficients: tuple, hz):
    """Return |H|² of a filter of second order at frequencies, float32 [K]."""
    # sin² of half the angle, since 1 - cos of small angles is rounded to 0.
    half = tf.square(tf.sin(hz * float(np.pi / FILTER_RATE_HZ)))
    squares = []
    for a, b, c in coefficients:
        # |a + b z + c z²|² = (a + b + c)² - 4 (ab + bc + 4 ac) s + 16 ac s², s = sin² (ω / 2)
        constant, linear = (a + b + c) ** 2, -4.0 * (a * b + b * c + 4.0 * a * c)
        squares.append(constant + half * (linear + 16.0 * a * c * half))
    return squares[0] / squares[1]


def _mean(power, chosen):
    total = tf.reduce_sum(tf.where(chosen, power, 0.0), axis=1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(tf.cast(chosen, tf.float32), axis=1))


def _power(lufs: float) -> float:
    return 10.0 ** ((lufs - OFFSET_DB) / 10.0)
