"""Fundamental frequency (F0) by YIN, on the frame grid of the mel, on the current device."""

from functools import cache
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, frame_count, sample_rate_hz
from myxtts.base.portable_ops import float32_matmul, indices

F0_MIN_HZ = 60.0
F0_MAX_HZ = 600.0
SMOOTHING_S = 0.001  # removes noise and fine formant structure, as in the paper
# The smoothed wave ends below 1 kHz: 11 kHz finds the same pitches in twice the time.
DECIMATION = 4
HOP_LENGTH = HOP_SAMPLES // DECIMATION
# 35 ms at 22.05 kHz: two periods of the lowest voice.
WINDOW_HOPS = 3
# The first trough with less aperiodicity is the period; later, lower ones are its multiples.
TROUGH_THRESHOLD = 0.1
# Frames with less aperiodicity are voiced. On espeak-ng 6 % of the voiced frames are missed and 2 %
# are false positives; after Griffin-Lim 13 % and 2 %.
VOICING_THRESHOLD = 0.35
# -60 dB of full scale: below it, hum, the lowest bits and rounding also have a pitch.
NOISE_FLOOR = 1e-3
# A low voice has troughs at half and twice its period: of a man, a frame in 37 is an octave off.
# The frames within 0.15 s decide. Their F0 is that of an octave if it is within a fifth of it.
NEIGHBOURS = 13
OCTAVE_TOLERANCE = 0.2


class _Lags(NamedTuple):
    """Lags and lengths at the decimated rate, 5.5 kHz for 22.05 kHz.

    Attributes:
        shortest, lags: of a period, 9 at 5.5 kHz; and their number from 0 on, 94.
        fft: a fast length of at least a hop and all lags after it, so that no lag wraps around.
        lead: samples by which a frame begins before its hop. A period is measured around half of
            window and lag after that, which is the middle of the mel frame for the middle lag; for
            the shortest and the longest it is 4 ms off.
        cumulative_mean: float32 [lags, candidates], of the differences up to each candidate.
    """

    rate_hz: float
    shortest: int
    lags: int
    fft: int
    lead: int
    cumulative_mean: np.ndarray


@cache
def _lags() -> _Lags:
    rate_hz = sample_rate_hz() / DECIMATION
    shortest, longest = int(rate_hz / F0_MAX_HZ), int(rate_hz / F0_MIN_HZ) + 1
    lag = np.arange(longest + 2)
    # The parabola of a period needs its neighbour on each side.
    candidates = lag[shortest - 1 :]
    is_summed = (lag[:, None] > 0) & (lag[:, None] <= candidates)
    fft = -(-(HOP_LENGTH + len(lag)) // 32) * 32
    lead = (WINDOW_HOPS * HOP_LENGTH + (shortest + longest) // 2) // 2 - HOP_LENGTH // 2
    mean = is_summed / candidates.astype(np.float32)
    return _Lags(rate_hz, shortest, len(lag), fft, lead, mean)


def f0(waveform, samples):
    """Estimate F0 from 60 to 600 Hz by YIN (de Cheveigné & Kawahara 2002, steps 2 to 5).

    The period is the first lag at which the cumulative mean normalised difference (the
    aperiodicity) has a trough below TROUGH_THRESHOLD, or the lowest trough if there is none. A
    parabola through the difference function refines it. A frame is voiced if the aperiodicity of
    its period is below VOICING_THRESHOLD.

    The wave is decimated after the smoothing of the paper, so the depth of a trough is also
    interpolated by a parabola.

    float32 [B, samples] in [-1, 1], and the real samples of each row, int32 [B] -> F0
    in Hz, float32 [B, samples // 256], 0 where unvoiced; and whether each frame is voiced, bool,
    False after the last frame of a row.
    """
    lags, padded = _lags(), tf.shape(waveform)[1]
    wave = tf.where(tf.sequence_mask(samples, padded), waveform, 0.0)
    difference = _difference(_hops(wave, frame_count(padded)))
    mean = float32_matmul(difference, lags.cumulative_mean)
    lag, aperiodicity = _find_period(difference[:, :, lags.shortest - 1 :] / mean)
    real = tf.sequence_mask(frame_count(samples), frame_count(padded))
    voiced = (aperiodicity < VOICING_THRESHOLD) & real
    hz = lags.rate_hz / _parabolic_interpolation(difference, lag)
    hz = tf.where(voiced, tf.clip_by_value(hz, F0_MIN_HZ, F0_MAX_HZ), 0.0)
    return in_octave_of_neighbours(hz), voiced


# The voiced frames around each frame vote for the octave below it, that above it, or that of the
# frame itself.
def in_octave_of_neighbours(hz):
    """Return F0, float32 [B, T], halved or doubled where two thirds of the votes are for it."""
    frames = tf.shape(hz)[1]
    around = indices(frames)[:, None] + np.arange(2 * NEIGHBOURS + 1)
    padded = tf.pad(hz, [[0, 0], [NEIGHBOURS, NEIGHBOURS]])
    ratios = tf.gather(padded, around, axis=1) / tf.maximum(hz, F0_MIN_HZ)[:, :, None]

    def votes(octave):
        near = tf.abs(ratios - octave) < OCTAVE_TOLERANCE * octave
        return tf.reduce_sum(tf.cast(near, tf.float32), axis=2)

    lower, same, higher = (votes(octave) for octave in (0.5, 1.0, 2.0))
    hz = tf.where(lower > 2.0 * same, 0.5 * hz, tf.where(higher > 2.0 * same, 2.0 * hz, hz))
    return tf.where(hz > 0.0, tf.clip_by_value(hz, F0_MIN_HZ, F0_MAX_HZ), 0.0)


def _hops(wave, frames):
    """Return the smoothed and decimated wave in hops, float32 [batch, frames + 4, HOP_LENGTH].

    Frame i is measured on the samples from hop i on, which lie around the middle of frame i of the
    mel.
    """
    rows, samples = tf.unstack(tf.shape(wave))
    smoothing = round(SMOOTHING_S * sample_rate_hz())
    before = DECIMATION * _lags().lead + (smoothing - DECIMATION) // 2
    count = (frames + WINDOW_HOPS + 1) * HOP_LENGTH
    whole, rest = divmod(smoothing, DECIMATION)
    needed = (count + whole) * DECIMATION
    padded = tf.pad(wave, [[0, 0], [before, needed - before - samples]])
    # By sums of DECIMATION samples, since `tf.nn.avg_pool1d` takes ten times as long on a CPU.
    parts = tf.reshape(padded, [rows, -1, DECIMATION])
    sums, of_rest = tf.reduce_sum(parts, axis=2), tf.reduce_sum(parts[:, :, :rest], axis=2)
    total = tf.add_n([sums[:, i : i + count] for i in range(whole)]) + of_rest[:, whole:]
    return tf.reshape(total / smoothing, [rows, -1, HOP_LENGTH])


def _difference(hops):
    """Compute the squared difference of each frame from itself at each lag (YIN, eq. 6).

    Hops of `_hops` -> float32 [batch, frames, lags].

    |a - b|² = |b|² - 2ab + |a|². The first two terms are one product of spectra, and the third is
    minus their value at lag 0. The difference that noise at NOISE_FLOOR has from itself is added,
    so that no quieter signal is periodic.
    """
    fft, first = _lags().fft, hops[:, :-2]
    block = tf.concat([first, hops[:, 1:-1], hops[:, 2:, : fft - 2 * HOP_LENGTH]], axis=2)
    signals = tf.ones([HOP_LENGTH]), -2.0 * first, tf.square(block), block
    ones, first, power, spectrum = (tf.signal.rfft(x, [fft]) for x in signals)
    product = power * tf.math.conj(ones) + spectrum * tf.math.conj(first)
    by_hop = tf.signal.irfft(product, [fft])[:, :, : _lags().lags]
    frame = by_hop[:, :-2] + by_hop[:, 1:-1] + by_hop[:, 2:]
    return frame - frame[:, :, :1] + 2.0 * NOISE_FLOOR**2 * WINDOW_HOPS * HOP_LENGTH


def _find_period(normalised):
    """Return the lag of each frame's period, int64 [B, T], and its aperiodicity (1: no trough).

    float32 [B, T, candidates], each difference over the mean up to it (YIN, eq. 8). A GPU
    computes with int64 in its own memory, but adds int32 on the host.
    """
    periods = normalised.shape[2] - 2
    before, at, after = (normalised[:, :, i : i + periods] for i in range(3))
    # This order never rounds to 0 at a trough.
    slope = before - after
    curvature = (before - at) + (after - at)
    is_trough = (at < before) & (at <= after)
    troughs = tf.where(is_trough, at - tf.square(slope) / (8.0 * curvature), 1.0)
    first = np.arange(-periods, 0, dtype=np.float32)
    ranks = tf.where(troughs < TROUGH_THRESHOLD, first, troughs)
    index = tf.argmin(ranks, axis=2, output_type=tf.int64)
    return _lags().shortest + index, tf.gather(troughs, index, batch_dims=2)


def _parabolic_interpolation(difference, lag):
    """Return the vertex of the parabola through three neighbours, at most one sample from `lag`."""
    neighbours = lag[:, :, None] + tf.constant([-1, 0, 1], tf.int64)
    before, at, after = tf.unstack(tf.gather(difference, neighbours, batch_dims=2), axis=2)
    curvature = before - 2.0 * at + after
    is_convex = curvature > 0.0
    offset = 0.5 * (before - after) / tf.where(is_convex, curvature, 1.0)
    offset = tf.where(is_convex, offset, 0.0)
    return tf.cast(lag, tf.float32) + tf.clip_by_value(offset, -1.0, 1.0)
