"""Waves of an equal loudness, the loudness of batches (see `k_weighting`), and a limiter.

Shape legend: B rows, S samples, K bins.
"""

import numpy as np
import tensorflow as tf

from myxtts.audio.excitation import upsampled
from myxtts.audio.format import sample_rate_hz
from myxtts.audio.k_weighting import (
    BLOCK_HOPS,
    FILTER_RATE_HZ,
    MARGIN_S,
    RELATIVE_GATE_DB,
    SILENCE_LUFS,
    power_of,
    squared_response,
)
from myxtts.audio.spectral import frequency_grid, scaled
from myxtts.base.portable_ops import on_host

LIMITER_SAMPLES = 64  # 3 ms, of which the limiter takes the peak
FULL_SCALE = 0.999  # below 1 by more than a rounding error


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
    wanted = tf.sqrt(tf.math.divide_no_nan(power_of(lufs), power))
    gain = tf.where(power > 0.0, tf.minimum(wanted, tf.math.divide_no_nan(1.0, peak)), 1.0)
    return wave * gain[:, None]


# A block's gain is that of the largest sample of three blocks. Gains are interpolated between the
# centres of blocks, both of which have seen the samples between them.
def limited(wave):
    """Turn a wave down where samples are beyond full scale and for 4 ms around, not elsewhere.

    float32 [B, S], S a multiple of LIMITER_SAMPLES -> [B, S] in [-1, 1].
    """
    blocks = tf.reshape(tf.abs(wave), [tf.shape(wave)[0], -1, LIMITER_SAMPLES])
    peak = tf.reduce_max(blocks, axis=2)
    ends = tf.concat([peak[:, :1], peak, peak[:, -1:]], axis=1)
    peak = tf.maximum(tf.maximum(ends[:, :-2], ends[:, 2:]), peak)
    return wave * upsampled(FULL_SCALE / tf.maximum(peak, FULL_SCALE), LIMITER_SAMPLES)


# The wave is filtered as it is heard. Powers of tenths of a second become overlapping blocks of 0.4
# s. Blocks of silence are left out of a first mean; blocks 10 dB below that mean are left out of a
# second one, which is the result.
def gated_power(wave, samples):
    """Return the mean power of the blocks of each row that are no pauses, float32 [B]; 0 of none.

    As in pyloudnorm, the last block may lack half a hop. A row of less than a block is one block.
    """
    hop = sample_rate_hz() // 10
    block = BLOCK_HOPS * hop
    weighted = k_weighted(wave)
    real = tf.sequence_mask(samples, tf.shape(wave)[1])
    padding = block - 1 + (1 - tf.shape(wave)[1]) % hop
    square = tf.pad(tf.where(real, tf.square(weighted), 0.0), [[0, 0], [0, padding]])
    hops = tf.reduce_sum(tf.reshape(square, [tf.shape(wave)[0], -1, hop]), axis=2)
    count = tf.shape(hops)[1] - BLOCK_HOPS + 1
    blocks = tf.add_n([hops[:, i : i + count] for i in range(BLOCK_HOPS)])
    with on_host():
        length = tf.cast(samples, tf.float32)
        last = tf.cast(tf.maximum(tf.round((length - block) / hop), 0.0), tf.int32)
    power = blocks / tf.clip_by_value(length, 1.0, float(block))[:, None]
    loud = tf.sequence_mask(last + 1, count) & (power > power_of(SILENCE_LUFS))
    gate = _mean(power, loud) * 10.0 ** (RELATIVE_GATE_DB / 10.0)
    return _mean(power, loud & (power > gate[:, None]))


def k_weighted(wave):
    """Filter waves [B, S] as loudness is heard, without delay.

    At each frequency, the magnitude equals the standard's filters at the standard's sample rate.
    """
    length, hz = frequency_grid(tf.shape(wave)[1], round(MARGIN_S * sample_rate_hz()))
    half = tf.square(tf.sin(hz * float(np.pi / FILTER_RATE_HZ)))
    gain = tf.sqrt(squared_response(half))
    spectrum = scaled(tf.signal.rfft(wave, [length]), gain)
    return tf.signal.irfft(spectrum, [length])[:, : tf.shape(wave)[1]]


def _mean(power, chosen):
    total = tf.reduce_sum(tf.where(chosen, power, 0.0), axis=1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(tf.cast(chosen, tf.float32), axis=1))
