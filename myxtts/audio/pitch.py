"""Fundamental frequency on the frame grid of the mel, by YIN, on the device it is called on."""

import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ, frame_count

LOWEST_HZ = 60.0
HIGHEST_HZ = 600.0
SHORTEST_LAG = int(SAMPLE_RATE_HZ / HIGHEST_HZ)  # 36 samples
LONGEST_LAG = int(SAMPLE_RATE_HZ / LOWEST_HZ) + 1  # 368 samples
INTEGRATED_SAMPLES = 2 * LONGEST_LAG  # 33 ms: two periods of the lowest voice
FRAME_SAMPLES = INTEGRATED_SAMPLES + LONGEST_LAG + 1  # one lag more, for the parabola
TRANSFORM_SAMPLES = 1152  # at least a frame, so that no lag wraps around; 2^7 · 3^2 is quick
# A period is measured around (INTEGRATED_SAMPLES + lag) / 2 behind its frame's start. This stands in the middle
# of the mel's frame for the middle lag; the shortest and the longest are 83 samples (4 ms) off.
LEAD_SAMPLES = (INTEGRATED_SAMPLES + (SHORTEST_LAG + LONGEST_LAG) // 2) // 2 - HOP_SAMPLES // 2
SMOOTHED_SAMPLES = 22  # 1 ms: takes noise and fine formant structure off, as the paper does
DIP = 0.1  # aperiodicity: the first dip below it is the period, lower ones behind it are its multiples
VOICED = 0.35  # under it a frame is voiced: espeak-ng 5 % missed and 2 % added, after Griffin-Lim 12 % and 3 %
QUIETEST = 1e-3  # -60 dB of full scale: below it, hum and the last bits have a pitch too


def f0(waveform, samples):
    """Fundamental frequency from 60 to 600 Hz (de Cheveigné & Kawahara 2002, steps 2 to 5).

    The period is the first lag at which the cumulative mean normalised difference (the aperiodicity) has a dip
    below DIP, or else the lowest dip of all, made finer by a parabola through the difference function.
    A frame is voiced where the aperiodicity of its period is below VOICED.

    Args:
        waveform: float32 [batch, samples] in [-1, 1] at 22,050 Hz.
        samples: int32 [batch], the real samples of each row; what lies behind them is not heard.

    Returns:
        f0_hz: float32 [batch, samples // 256], 0 where unvoiced.
        voiced: bool [batch, samples // 256], False behind a row's last frame.
    """
    padded = tf.shape(waveform)[1]
    frames = _frames(tf.where(tf.sequence_mask(samples, padded), waveform, 0.0), frame_count(padded))
    difference = _difference(frames)
    lag, aperiodicity = _period(_normalised(difference))
    loud = tf.reduce_mean(tf.square(frames), axis=2) > QUIETEST**2
    real = tf.sequence_mask(frame_count(samples), frame_count(padded))
    voiced = (aperiodicity < VOICED) & loud & real
    return tf.where(voiced, SAMPLE_RATE_HZ / _refined(difference, lag), 0.0), voiced


def _frames(waveform, count):
    """float32 [batch, count, FRAME_SAMPLES] of the smoothed wave, around the middle of each of the mel's frames.

    Their mean is taken off: a constant would be as periodic as can be.
    """
    padded = tf.pad(waveform, [[0, 0], [LEAD_SAMPLES, FRAME_SAMPLES - LEAD_SAMPLES]])
    smooth = tf.nn.avg_pool1d(padded[:, :, None], SMOOTHED_SAMPLES, 1, "SAME")[:, :, 0]
    frames = tf.signal.frame(smooth, FRAME_SAMPLES, HOP_SAMPLES)[:, :count]
    return frames - tf.reduce_mean(frames, axis=2, keepdims=True)


def _difference(frames):
    """Squared difference between the frame's first INTEGRATED_SAMPLES and as many behind each lag from 0 (YIN's eq. 6).

    Returns:
        float32 [batch, frames, LONGEST_LAG + 2].
    """
    lags = LONGEST_LAG + 2
    spectrum = tf.signal.rfft(frames, [TRANSFORM_SAMPLES])
    first = tf.signal.rfft(frames[:, :, :INTEGRATED_SAMPLES], [TRANSFORM_SAMPLES])
    correlation = tf.signal.irfft(spectrum * tf.math.conj(first), [TRANSFORM_SAMPLES])[:, :, :lags]
    energy = tf.cumsum(tf.pad(tf.square(frames), [[0, 0], [0, 0], [1, 0]]), axis=2)
    energy = energy[:, :, INTEGRATED_SAMPLES:] - energy[:, :, :lags]
    return tf.maximum(energy[:, :, :1] + energy - 2.0 * correlation, 0.0)


def _normalised(difference):
    """YIN's eq. 8: each difference over the mean of those up to it; 1 at lag 0 and where nothing differs."""
    total = tf.cumsum(difference, axis=2)
    lag = tf.range(tf.shape(difference)[2], dtype=tf.float32)
    return tf.where(total > 0.0, difference * lag / tf.where(total > 0.0, total, 1.0), 1.0)


def _period(normalised):
    """Lag of each frame's period int32 [batch, frames], and the aperiodicity there; 1 where there is no dip."""
    before, at, behind = (normalised[:, :, SHORTEST_LAG + i : LONGEST_LAG + 1 + i] for i in (-1, 0, 1))
    dips = tf.where((at < before) & (at <= behind), at, 1.0)
    low = tf.cast(dips < DIP, tf.float32)
    first, lowest = (tf.argmax(x, axis=2, output_type=tf.int32) for x in (low, -dips))
    chosen = tf.where(tf.reduce_any(dips < DIP, axis=2), first, lowest)
    return SHORTEST_LAG + chosen, tf.gather(dips, chosen, batch_dims=2)


def _refined(difference, lag):
    """Lag of the parabola's vertex through three neighbours, at most one sample away."""
    near = lag[:, :, None] + tf.constant([-1, 0, 1])
    before, at, behind = tf.unstack(tf.gather(difference, near, batch_dims=2), axis=2)
    curvature = before - 2.0 * at + behind
    away = tf.where(curvature > 0.0, 0.5 * (before - behind) / tf.where(curvature > 0.0, curvature, 1.0), 0.0)
    return tf.cast(lag, tf.float32) + tf.clip_by_value(away, -1.0, 1.0)
