"""Fundamental frequency (F0) by YIN, on the frame grid of the mel, on the current device."""

import numpy as np
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ, frame_count
from myxtts.base.portable_ops import float32_matmul

F0_MIN_HZ = 60.0
F0_MAX_HZ = 600.0
# 1 ms: removes noise and fine formant structure, as in the paper.
SMOOTHING_SAMPLES = 22
# The smoothed wave ends below 1 kHz: 11 kHz finds the same pitches in twice the time.
DECIMATION = 4
# 5.5 kHz; the lengths below are in samples at this rate.
DECIMATED_RATE_HZ = SAMPLE_RATE_HZ / DECIMATION
HOP_LENGTH = HOP_SAMPLES // DECIMATION
MIN_LAG = int(DECIMATED_RATE_HZ / F0_MAX_HZ)  # 9
MAX_LAG = int(DECIMATED_RATE_HZ / F0_MIN_HZ) + 1  # 92
# From 0, and one more for the parabola.
NUM_LAGS = MAX_LAG + 2
# 35 ms: two periods of the lowest voice.
WINDOW_HOPS = 3
# At least a hop and all lags after it, so that no lag wraps around; 2^5 · 5 is a fast length.
FFT_LENGTH = 160
# A period is measured around (WINDOW_HOPS * HOP_LENGTH + lag) / 2 after the start of its frame. For
# the middle lag, this point is the middle of the mel frame; for the shortest and the longest lag it
# is 21 samples (4 ms) off.
LEAD_SAMPLES = (WINDOW_HOPS * HOP_LENGTH + (MIN_LAG + MAX_LAG) // 2) // 2 - HOP_LENGTH // 2
# The first trough with less aperiodicity is the period; later, lower ones are its multiples.
TROUGH_THRESHOLD = 0.1
# Frames with less aperiodicity are voiced. On espeak-ng 6 % of the voiced frames are missed and 2 %
# are false positives; after Griffin-Lim 13 % and 2 %.
VOICING_THRESHOLD = 0.35
# -60 dB of full scale: below it, hum, the lowest bits and rounding also have a pitch.
NOISE_FLOOR = 1e-3

_LAG = np.arange(NUM_LAGS)
# The parabola of a period needs its neighbour on each side.
_CANDIDATE_LAGS = _LAG[MIN_LAG - 1 :]
_IS_SUMMED = (_LAG[:, None] > 0) & (_LAG[:, None] <= _CANDIDATE_LAGS)
_CUMULATIVE_MEAN = _IS_SUMMED / _CANDIDATE_LAGS.astype(np.float32)
_NUM_PERIODS = len(_CANDIDATE_LAGS) - 2


def f0(waveform, samples):
    """Estimate F0 from 60 to 600 Hz by YIN (de Cheveigné & Kawahara 2002, steps 2 to 5).

    The period is the first lag at which the cumulative mean normalised difference (the
    aperiodicity) has a trough below TROUGH_THRESHOLD, or the lowest trough if there is none. A
    parabola through the difference function refines it. A frame is voiced if the aperiodicity of
    its period is below VOICING_THRESHOLD.

    The wave is decimated after the smoothing of the paper, so the depth of a trough is also
    interpolated by a parabola.

    float32 [B, samples] in [-1, 1] at 22,050 Hz, and the real samples of each row, int32 [B] -> F0
    in Hz, float32 [B, samples // 256], 0 where unvoiced; and whether each frame is voiced, bool,
    False after the last frame of a row.
    """
    padded = tf.shape(waveform)[1]
    wave = tf.where(tf.sequence_mask(samples, padded), waveform, 0.0)
    difference = _difference(_hops(wave, frame_count(padded)))
    mean = float32_matmul(difference, _CUMULATIVE_MEAN)
    lag, aperiodicity = _find_period(difference[:, :, MIN_LAG - 1 :] / mean)
    real = tf.sequence_mask(frame_count(samples), frame_count(padded))
    voiced = (aperiodicity < VOICING_THRESHOLD) & real
    hz = DECIMATED_RATE_HZ / _parabolic_interpolation(difference, lag)
    return tf.where(voiced, tf.clip_by_value(hz, F0_MIN_HZ, F0_MAX_HZ), 0.0), voiced


def _hops(wave, frames):
    """Return the smoothed and decimated wave in hops, float32 [batch, frames + 4, HOP_LENGTH].

    Frame i is measured on the samples from hop i on, which lie around the middle of frame i of the
    mel.
    """
    rows, samples = tf.unstack(tf.shape(wave))
    before = DECIMATION * LEAD_SAMPLES + (SMOOTHING_SAMPLES - DECIMATION) // 2
    count = (frames + WINDOW_HOPS + 1) * HOP_LENGTH
    whole, rest = divmod(SMOOTHING_SAMPLES, DECIMATION)
    needed = (count + whole) * DECIMATION
    padded = tf.pad(wave, [[0, 0], [before, needed - before - samples]])
    # By sums of DECIMATION samples, since `tf.nn.avg_pool1d` takes ten times as long on a CPU.
    parts = tf.reshape(padded, [rows, -1, DECIMATION])
    sums, of_rest = tf.reduce_sum(parts, axis=2), tf.reduce_sum(parts[:, :, :rest], axis=2)
    total = tf.add_n([sums[:, i : i + count] for i in range(whole)]) + of_rest[:, whole:]
    return tf.reshape(total / SMOOTHING_SAMPLES, [rows, -1, HOP_LENGTH])


def _difference(hops):
    """Compute the squared difference of each frame from itself at each lag (YIN, eq. 6).

    Hops of `_hops` -> float32 [batch, frames, NUM_LAGS].

    |a - b|² = |b|² - 2ab + |a|². The first two terms are one product of spectra, and the third is
    minus their value at lag 0. The difference that noise at NOISE_FLOOR has from itself is added,
    so that no quieter signal is periodic.
    """
    first = hops[:, :-2]
    block = tf.concat([first, hops[:, 1:-1], hops[:, 2:, : FFT_LENGTH - 2 * HOP_LENGTH]], axis=2)
    signals = tf.ones([HOP_LENGTH]), -2.0 * first, tf.square(block), block
    ones, first, power, spectrum = (tf.signal.rfft(x, [FFT_LENGTH]) for x in signals)
    product = power * tf.math.conj(ones) + spectrum * tf.math.conj(first)
    by_hop = tf.signal.irfft(product, [FFT_LENGTH])[:, :, :NUM_LAGS]
    frame = by_hop[:, :-2] + by_hop[:, 1:-1] + by_hop[:, 2:]
    return frame - frame[:, :, :1] + 2.0 * NOISE_FLOOR**2 * WINDOW_HOPS * HOP_LENGTH


def _find_period(normalised):
    """Return the lag of each frame's period, int64 [B, T], and its aperiodicity (1: no trough).

    float32 [B, T, _CANDIDATE_LAGS], each difference over the mean up to it (YIN, eq. 8). A GPU
    computes with int64 in its own memory, but adds int32 on the host.
    """
    before, at, after = (normalised[:, :, i : i + _NUM_PERIODS] for i in range(3))
    # This order never rounds to 0 at a trough.
    slope = before - after
    curvature = (before - at) + (after - at)
    is_trough = (at < before) & (at <= after)
    troughs = tf.where(is_trough, at - tf.square(slope) / (8.0 * curvature), 1.0)
    first = np.arange(-_NUM_PERIODS, 0, dtype=np.float32)
    ranks = tf.where(troughs < TROUGH_THRESHOLD, first, troughs)
    index = tf.argmin(ranks, axis=2, output_type=tf.int64)
    return MIN_LAG + index, tf.gather(troughs, index, batch_dims=2)


def _parabolic_interpolation(difference, lag):
    """Return the vertex of the parabola through three neighbours, at most one sample from `lag`."""
    neighbours = lag[:, :, None] + tf.constant([-1, 0, 1], tf.int64)
    before, at, after = tf.unstack(tf.gather(difference, neighbours, batch_dims=2), axis=2)
    curvature = before - 2.0 * at + after
    is_convex = curvature > 0.0
    offset = 0.5 * (before - after) / tf.where(is_convex, curvature, 1.0)
    offset = tf.where(is_convex, offset, 0.0)
    return tf.cast(lag, tf.float32) + tf.clip_by_value(offset, -1.0, 1.0)
