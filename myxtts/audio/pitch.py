"""Fundamental frequency on the frame grid of the mel, by YIN, on the device it is called on."""

import numpy as np
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ, frame_count

F0_MIN_HZ = 60.0
F0_MAX_HZ = 600.0
SMOOTHED_SAMPLES = 22  # 1 ms: takes noise and fine formant structure off, as the paper does
DECIMATION = 4  # what is left ends below 1 kHz: at 11 kHz the same pitches are found in twice the time
RATE_HZ = SAMPLE_RATE_HZ / DECIMATION  # 5.5 kHz; the lengths below are in samples of this rate
HOP = HOP_SAMPLES // DECIMATION
SHORTEST_LAG = int(RATE_HZ / F0_MAX_HZ)  # 9
LONGEST_LAG = int(RATE_HZ / F0_MIN_HZ) + 1  # 92
LAGS = LONGEST_LAG + 2  # from 0, and one more for the parabola
INTEGRATED_HOPS = 3  # 35 ms: two periods of the lowest voice
BLOCK = 160  # at least a hop and all lags behind it, so that no lag wraps around; 2^5 · 5 is quick to transform
# A period is measured around (INTEGRATED_HOPS * HOP + lag) / 2 behind its frame's start. This stands in the middle
# of the mel's frame for the middle lag; the shortest and the longest are 21 samples (4 ms) off.
LEAD = (INTEGRATED_HOPS * HOP + (SHORTEST_LAG + LONGEST_LAG) // 2) // 2 - HOP // 2
DIP = 0.1  # aperiodicity: the first dip below it is the period, lower ones behind it are its multiples
VOICED = 0.35  # under it a frame is voiced: espeak-ng 6 % missed and 2 % added, after Griffin-Lim 13 % and 2 %
QUIETEST = 1e-3  # -60 dB of full scale: below it, hum, the last bits and rounding have a pitch too

_LAG = np.arange(LAGS)
_LOOKED_AT = _LAG[SHORTEST_LAG - 1 :]  # the lags of a period, and a neighbour on both sides
_MEANS = ((_LAG[:, None] > 0) & (_LAG[:, None] <= _LOOKED_AT)) / _LOOKED_AT.astype(np.float32)
_PERIODS = len(_LOOKED_AT) - 2


def f0(waveform, samples):
    """Fundamental frequency from 60 to 600 Hz (de Cheveigné & Kawahara 2002, steps 2 to 5).

    The period is the first lag at which the cumulative mean normalised difference (the aperiodicity) has a dip
    below DIP, or else the lowest dip of all, made finer by a parabola through the difference function.
    A frame is voiced where the aperiodicity of its period is below VOICED.

    For speed the wave is decimated after the paper's smoothing, so that the depth of a dip is taken from a parabola
    too; and a frame's difference function is the sum of those of its hops, which it shares with its neighbours.

    Args:
        waveform: float32 [batch, samples] in [-1, 1] at 22,050 Hz.
        samples: int32 [batch], the real samples of each row; what lies behind them is not heard.

    Returns:
        f0_hz: float32 [batch, samples // 256], 0 where unvoiced.
        voiced: bool [batch, samples // 256], False behind a row's last frame.
    """
    padded = tf.shape(waveform)[1]
    wave = tf.where(tf.sequence_mask(samples, padded), waveform, 0.0)
    difference = _difference(_hops(wave, frame_count(padded)))
    lag, aperiodicity = _period(difference[:, :, SHORTEST_LAG - 1 :] / tf.matmul(difference, _MEANS))
    voiced = (aperiodicity < VOICED) & tf.sequence_mask(frame_count(samples), frame_count(padded))
    hz = tf.clip_by_value(RATE_HZ / _refined(difference, lag), F0_MIN_HZ, F0_MAX_HZ)
    return tf.where(voiced, hz, 0.0), voiced


def _hops(wave, frames):
    """float32 [batch, frames + 4, HOP] of the smoothed and decimated wave.

    From hop i on lie the samples that frame i is measured on, around the middle of the mel's frame i.
    """
    rows, samples = tf.unstack(tf.shape(wave))
    before = DECIMATION * LEAD + (SMOOTHED_SAMPLES - DECIMATION) // 2
    needed = (frames + INTEGRATED_HOPS + 1) * HOP_SAMPLES + SMOOTHED_SAMPLES - DECIMATION
    padded = tf.pad(wave, [[0, 0], [before, needed - before - samples]])
    smooth = tf.nn.avg_pool1d(padded[:, :, None], SMOOTHED_SAMPLES, DECIMATION, "VALID")
    return tf.reshape(smooth, [rows, frames + INTEGRATED_HOPS + 1, HOP])


def _difference(hops):
    """Squared difference between a frame's first hops and as many samples behind each lag from 0 (YIN's eq. 6).

    |a - b|² = |b|² - 2ab + |a|², of which the first two are one product of spectra, and minus the third is their
    value at lag 0. What a noise of QUIETEST differs from itself is added, so that nothing quieter is periodic.

    Returns:
        float32 [batch, frames, LAGS].
    """
    first = hops[:, :-2]
    block = tf.concat([first, hops[:, 1:-1], hops[:, 2:, : BLOCK - 2 * HOP]], axis=2)
    ones, first, power, spectrum = (
        tf.signal.rfft(x, [BLOCK]) for x in (tf.ones([HOP]), -2.0 * first, tf.square(block), block)
    )
    product = power * tf.math.conj(ones) + spectrum * tf.math.conj(first)
    each = tf.signal.irfft(product, [BLOCK])[:, :, :LAGS]
    frame = each[:, :-2] + each[:, 1:-1] + each[:, 2:]
    return frame - frame[:, :, :1] + 2.0 * QUIETEST**2 * INTEGRATED_HOPS * HOP


def _period(normalised):
    """Lag of each frame's period int32 [batch, frames], and the aperiodicity there; 1 where there is no dip.

    Args:
        normalised: float32 [batch, frames, _LOOKED_AT], each difference over the mean of those up to it (YIN's eq. 8).
    """
    before, at, behind = (normalised[:, :, i : i + _PERIODS] for i in range(3))
    slope, curvature = before - behind, (before - at) + (behind - at)  # thus it is never 0 at a dip by rounding
    dips = tf.where((at < before) & (at <= behind), at - tf.square(slope) / (8.0 * curvature), 1.0)
    first = np.arange(-_PERIODS, 0, dtype=np.float32)
    chosen = tf.argmin(tf.where(dips < DIP, first, dips), axis=2, output_type=tf.int32)
    return SHORTEST_LAG + chosen, tf.gather(dips, chosen, batch_dims=2)


def _refined(difference, lag):
    """Lag of the parabola's vertex through three neighbours, at most one sample away."""
    near = lag[:, :, None] + tf.constant([-1, 0, 1])
    before, at, behind = tf.unstack(tf.gather(difference, near, batch_dims=2), axis=2)
    curvature = before - 2.0 * at + behind
    away = tf.where(curvature > 0.0, 0.5 * (before - behind) / tf.where(curvature > 0.0, curvature, 1.0), 0.0)
    return tf.cast(lag, tf.float32) + tf.clip_by_value(away, -1.0, 1.0)
