"""The harmonic source of a vocoder: a band-limited pulse train of a given F0 and phase."""

import numpy as np
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, sample_rate_hz
from myxtts.base.portable_ops import float32_matmul, indices

UNVOICED_HZ = 100.0  # where nothing is voiced
BLOCK_FRAMES = 64


def pulse_train(f0_hz, pulse_phasor):
    """Return equal cosines at all harmonics of F0 below half the sample rate.

    Their sum has a closed form, the Dirichlet kernel. F0 is interpolated linearly between the
    centres of frames. The phase is summed in float64: a sum in float32 is wrong by 59 cycles after
    a minute of 120 Hz. The correction towards `pulse_phasor` is also interpolated between frames.

    Positive F0, float32 [batch, frames] -> float32 [batch, frames * 256], of unit power.

    `pulse_phasor`, float32 [batch, frames, 2], has real and imaginary part of the direction of the
    fundamental's phase at the centre of each frame; shorter where it is less certain. With 0
    everywhere, the phase is 0 at the start.
    """
    hz, phase = _integrated(f0_hz)
    phasor = _rotated(pulse_phasor, -_at_centres(phase))
    real, imaginary = map(upsampled, tf.unstack(phasor, axis=2))
    phase += tf.atan2(imaginary, real + 1e-6) / (2.0 * np.pi)
    half = np.pi * (phase - tf.round(phase))
    harmonics = tf.floor(0.5 * sample_rate_hz() / hz)
    order = 2.0 * harmonics + 1.0
    sine = tf.sin(half)
    at_pulse = tf.abs(sine) < 1e-4
    kernel = tf.where(at_pulse, order, tf.sin(order * half) / tf.where(at_pulse, 1.0, sine))
    return 0.5 * (kernel - 1.0) * tf.math.rsqrt(0.5 * harmonics)


def smoothed_phasor(pulse_phasor, f0_hz, window_frames: int):
    """Average phasors over a Hann window, after removing the rotation that F0 explains.

    Arguments are as of `pulse_train`; the frames with a positive weight are odd in number. A
    phasor's length weights it, so that the certain frames decide on the phase of their neighbours.
    """
    phase = _at_centres(_integrated(f0_hz)[1])
    window = np.hanning(window_frames + 2)[1:-1].astype(np.float32)
    still = tf.transpose(_rotated(pulse_phasor, -phase), [0, 2, 1])  # [B, 2, T]
    rows = tf.reshape(still, [-1, tf.shape(still)[2], 1])
    mean = tf.nn.conv1d(rows, window[:, None, None], 1, "SAME")
    return _rotated(tf.transpose(tf.reshape(mean, tf.shape(still)), [0, 2, 1]), phase)


def pulse_phasor(wave, f0_hz):
    """Measure the phase of the fundamental at the centre of each frame.

    The wave is demodulated by F0 and weighted by a Hann window of three hops around the centre: 35
    ms, in which two periods of the lowest voice fit.

    float32 [batch, frames * 256], F0 [batch, frames], 0 where unvoiced -> [batch, frames, 2], of
    unit length; 0 where unvoiced.
    """
    phase = _integrated(interpolate_unvoiced(f0_hz))[1]
    angle = 2.0 * np.pi * phase
    rows = tf.shape(wave)[0]
    moved = tf.stack([wave * tf.cos(angle), -wave * tf.sin(angle)], axis=1)  # [B, 2, samples]
    window = np.hanning(3 * HOP_SAMPLES + 1)[:-1].reshape(3, HOP_SAMPLES).T.astype(np.float32)
    sums = float32_matmul(tf.reshape(moved, [rows, 2, -1, HOP_SAMPLES]), window)
    before, at, after = tf.unstack(tf.pad(sums, [[0, 0], [0, 0], [1, 1], [0, 0]]), axis=3)
    still = tf.transpose(before[:, :, :-2] + at[:, :, 1:-1] + after[:, :, 2:], [0, 2, 1])
    length = tf.sqrt(tf.reduce_sum(tf.square(still), axis=2, keepdims=True))
    has_phase = (length > 0.0) & (f0_hz > 0.0)[:, :, None]
    unit = tf.where(has_phase, still / tf.maximum(length, 1e-20), 0.0)
    return _rotated(unit, _at_centres(phase))


def _integrated(f0_hz):
    """Return F0 of each sample, and its phase in cycles [0, 1]: [B, T] -> two of [B, T * 256]."""
    hz = upsampled(f0_hz)
    phase = tf.cumsum(tf.cast(hz, tf.float64) / sample_rate_hz(), axis=1)
    return hz, tf.cast(phase - tf.floor(phase), tf.float32)


def _at_centres(samples):
    return samples[:, HOP_SAMPLES // 2 :: HOP_SAMPLES]


def _rotated(phasor, cycles):
    """Rotate phasors [B, T, 2] by a number of cycles [B, T]."""
    real, imaginary = tf.unstack(phasor, axis=2)
    cos, sin = tf.cos(2.0 * np.pi * cycles), tf.sin(2.0 * np.pi * cycles)
    return tf.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], axis=2)


def upsampled(frames, hop: int = HOP_SAMPLES):
    """Interpolate linearly between the centres of frames of `hop`: [B, T] -> [B, T * hop]."""
    ends = tf.concat([frames[:, :1], frames, frames[:, -1:]], axis=1)[:, :, None]
    before, at, after = ends[:, :-2], ends[:, 1:-1], ends[:, 2:]
    distance = ((np.arange(hop) + 0.5) / hop - 0.5).astype(np.float32)
    first, second = np.split(distance, 2)
    change = tf.concat([(at - before) * first, (after - at) * second], axis=2)
    return tf.reshape(at + change, [tf.shape(frames)[0], -1])


def _running_maximum(values):
    """Return the running maximum of values that are not negative: float32 [B, T] -> [B, T].

    Within blocks and then over blocks, since all pairs of two minutes of frames would take 0.4 GB a
    row.
    """
    rows, count = tf.shape(values)[0], tf.shape(values)[1]
    # Padded with 0, by an operation without a constant that a GPU would have to copy to the host.
    padded = tf.pad(values, [[0, 0], [0, -count % BLOCK_FRAMES]])
    blocks = tf.reshape(padded, [rows, -1, BLOCK_FRAMES])
    place = tf.range(BLOCK_FRAMES)
    block = tf.range(tf.shape(blocks)[1])
    within = tf.where(place[None, :] <= place[:, None], blocks[:, :, None, :], 0.0)
    is_earlier = block[None, :] < block[:, None]
    of_earlier = tf.where(is_earlier, tf.reduce_max(blocks, axis=2)[:, None, :], 0.0)
    within, of_earlier = tf.reduce_max(within, axis=3), tf.reduce_max(of_earlier, axis=2)
    return tf.reshape(tf.maximum(within, of_earlier[:, :, None]), [rows, -1])[:, :count]


# Two running maxima, forwards and backwards, give each frame the last voiced frame before it and
# the first behind it. F0 is interpolated between both; where one is missing, the other stands for
# it.
def interpolate_unvoiced(f0_hz):
    """Fill unvoiced frames of F0 [B, T] by linear interpolation, and from the ends outwards.

    They are 0. A row without voiced frames gets UNVOICED_HZ.
    """
    voiced = f0_hz > 0.0
    frame = tf.cast(indices(tf.shape(f0_hz)[1]), tf.float32)
    last = frame[-1]
    # Counted from 1, so that 0 says that there is no voiced frame before, or after.
    before = _running_maximum(tf.where(voiced, frame + 1.0, 0.0))
    after = _running_maximum(tf.where(voiced, last - frame + 1.0, 0.0)[:, ::-1])[:, ::-1]
    has_before, has_after = before > 0.0, after > 0.0
    after = last - after + 1.0
    before = tf.where(has_before, before - 1.0, tf.where(has_after, after, 0.0))
    after = tf.where(has_after, after, before)
    low = tf.gather(f0_hz, tf.cast(before, tf.int64), batch_dims=1)
    high = tf.gather(f0_hz, tf.cast(after, tf.int64), batch_dims=1)
    hz = low + (high - low) * (frame - before) / tf.maximum(after - before, 1.0)
    return tf.where(low > 0.0, hz, UNVOICED_HZ)
