"""Random distortions of waves for training: rooms, noise, equalisers, codecs, speed.

The batch's seed determines all draws, and each row has draws of its own. The delay of the direct
sound is 0 in all of them, so alignments stay; `perturb_speed` alone changes lengths.

Shape legend: B rows, S samples, N length of the Fourier transform, K = N / 2 + 1 its bins.
"""

import numpy as np
import tensorflow as tf

from myxtts.audio.format import sample_rate_hz
from myxtts.audio.spectral import counted, frequency_grid, scaled
from myxtts.base.portable_ops import (
    float32_matmul,
    fold_in,
    on_host,
    stateless_normal,
    stateless_uniform,
)
from myxtts.config.schema import ASRConfig, AugmentationConfig

MIN_RT60_S = 0.1
DIRECT_TO_REVERBERANT_DB = (-3.0, 12.0)
NOISE_SLOPES = (0.0, 1.0)  # amplitude is proportional to f^-slope: white, pink at 0.5, brown at 1
# Below, the spectrum of coloured noise is flat: most of brown noise would be inaudible.
NOISE_FLOOR_HZ = 50.0
PEAKS = 3  # of an equaliser
PEAK_HZ = (100.0, 8000.0)
PEAK_GAIN_DB = 9.0
PEAK_OCTAVES = (0.5, 1.5)
HIGH_PASS_HZ, LOW_PASS_HZ = (60.0, 600.0), (2500.0, 7500.0)
TELEPHONE_HZ = (300.0, 3400.0)
MU = 255.0
MU_LAW_BITS = (4, 8)
# 93 ms of silence behind the waves, into which a response without a room may ring.
MARGIN_SAMPLES = 2048
# Positions between two samples; the rounding is 50 dB below the wave.
PHASES = 512

_X = np.arange(PHASES) / PHASES  # from the second to the third of four samples
_FIRST, _SECOND = -_X * (_X - 1) * (_X - 2) / 6, (_X + 1) * (_X - 1) * (_X - 2) / 2
_THIRD, _FOURTH = -(_X + 1) * _X * (_X - 2) / 2, (_X + 1) * _X * (_X - 1) / 6
_LAGRANGE_WEIGHTS = np.stack([_FIRST, _SECOND, _THIRD, _FOURTH], axis=1).astype(np.float32)

# Width of each array of uniform numbers of a row. A new one comes last, so that the others keep
# their values.
DRAWS = {
    **{"reverb": 1, "rt60": 1, "direct to reverberant": 1},
    **{"equaliser": 1, "peak gain": PEAKS, "peak centre": PEAKS, "peak width": PEAKS},
    **{"band limit": 1, "band limit kind": 1, "high pass": 1, "low pass": 1},
    **{"noise": 1, "snr": 1, "noise slope": 1, "babble": 1, "codec": 1, "codec bits": 1},
}


class Draws:
    """Random numbers for the rows of a batch, whose number is an int32 scalar in host memory.

        snr_db = Draws(seed, rows).uniform("snr", (0.0, 20.0))

    Those of a row do not depend on the rows after it, on padding, or on which settings are on.
    """

    def __init__(self, seed, rows):
        self._seed, self._rows = seed, rows
        shape = [rows, sum(DRAWS.values())]
        self._uniform = stateless_uniform(shape, fold_in(seed, "rows"))

    def uniform(self, name: str, bounds: tuple[float, float] = (0.0, 1.0)):
        """Return float32 [rows, DRAWS[name]] between two bounds."""
        low, high = bounds
        first = sum(list(DRAWS.values())[: list(DRAWS).index(name)])
        return low + (high - low) * self._uniform[:, first : first + DRAWS[name]]

    def log_uniform(self, name: str, bounds: tuple[float, float]):
        """Return float32 [rows, DRAWS[name]], whose logarithms are uniform."""
        low, high = bounds
        return tf.exp(self.uniform(name, (float(np.log(low)), float(np.log(high)))))

    def chosen(self, name: str, probability: float):
        """Return bool [rows, 1], True with a probability."""
        return self.uniform(name) < probability

    def normal(self, name: str, *shape):
        return stateless_normal([self._rows, *shape], fold_in(self._seed, name))

    def between_rows(self, name: str):
        """Return uniform float32 [rows, rows]."""
        return stateless_uniform([self._rows, self._rows], fold_in(self._seed, name))


# One channel, equaliser times band limits, is drawn for each row. The wave is convolved with its
# room and passes the channel; noise passes the channel too, as a microphone records both, and is
# scaled to its SNR last, so that a channel does not change it. The codec comes at the end, as in a
# telephone. Samples behind the end of a row are set to 0 after each stage, since the next one would
# spread them.
def augment(waves, samples, seed, settings: AugmentationConfig):
    """Distort each row at random: room, noise, equaliser and band limits, codec, in this order.

    Without any of these in the settings, the waves are returned as they are.

    float32 [B, S] in [-1, 1], and the real samples of each row, int32 [B]; 0 is allowed -> float32
    [B, S], about in [-1, 1]; 0 after the end of a row.
    """
    channels = settings.equaliser_probability or settings.band_limit_probability
    filters = settings.reverb_probability or channels
    if not (filters or settings.noise_probability or settings.codec_probability):
        return waves
    draws = Draws(fold_in(seed, "augmentation"), tf.shape(waves)[0])
    real = tf.sequence_mask(samples, tf.shape(waves)[1])
    wave = tf.where(real, waves, 0.0)
    if filters or settings.noise_probability:
        # The transform is longer than wave and response, so that no tail wraps around to the start.
        margin = MARGIN_SAMPLES
        if settings.reverb_probability:
            margin = max(margin, round(settings.reverb_max_rt60 * sample_rate_hz()))
        length, hz = frequency_grid(tf.shape(waves)[1], margin)
        channel = _channel(draws, hz, settings)
        if filters:
            wave = tf.where(real, _transmitted(wave, draws, length, channel, settings), 0.0)
        if settings.noise_probability:
            wave += _noise(wave, real, draws, (length, hz), channel, settings)
    if settings.codec_probability:
        lowest, highest = MU_LAW_BITS
        bits = tf.minimum(tf.floor(draws.uniform("codec bits", (lowest, highest + 1))), highest)
        wave = tf.where(draws.chosen("codec", settings.codec_probability), mu_law(wave, bits), wave)
    return tf.where(real, wave, 0.0)


def _transmitted(wave, draws: Draws, length, channel, settings: AugmentationConfig):
    """Return waves [B, S] in their rooms and through their channels [B, K]."""
    spectrum = tf.signal.rfft(wave, [length])
    if settings.reverb_probability:
        samples = round(settings.reverb_max_rt60 * sample_rate_hz())
        response = impulse_response(
            draws.normal("reverb tail", samples),
            draws.uniform("rt60", (MIN_RT60_S, settings.reverb_max_rt60)),
            draws.uniform("direct to reverberant", DIRECT_TO_REVERBERANT_DB),
            draws.chosen("reverb", settings.reverb_probability),
        )
        spectrum *= tf.signal.rfft(response, [length])
    if channel is not None:
        spectrum = scaled(spectrum, channel)
    return tf.signal.irfft(spectrum, [length])[:, : tf.shape(wave)[1]]


def _channel(draws: Draws, hz, settings: AugmentationConfig):
    """Return the gain of equaliser and band limits, [B, K] over frequencies; None without them."""
    gain = None
    if settings.equaliser_probability:
        chosen = draws.chosen("equaliser", settings.equaliser_probability)
        gain_db = draws.uniform("peak gain", (-PEAK_GAIN_DB, PEAK_GAIN_DB))
        centre_hz = draws.log_uniform("peak centre", PEAK_HZ)
        octaves = draws.uniform("peak width", PEAK_OCTAVES)
        gain = equaliser_gain(hz, centre_hz, tf.where(chosen, gain_db, 0.0), octaves)
    if settings.band_limit_probability:
        chosen = draws.chosen("band limit", settings.band_limit_probability)
        # Below 1: a low pass alone. From 1 to 2: a high pass alone. From 2: the band of a
        # telephone.
        kind = draws.uniform("band limit kind", (0.0, 3.0))
        low = draws.log_uniform("high pass", HIGH_PASS_HZ)
        high = draws.log_uniform("low pass", LOW_PASS_HZ)
        low = tf.where(kind < 2.0, low, TELEPHONE_HZ[0])
        high = tf.where(kind < 2.0, high, TELEPHONE_HZ[1])
        low = tf.where(kind < 1.0, 0.0, low)
        high = tf.where((kind >= 1.0) & (kind < 2.0), np.inf, high)
        limited = band_pass_gain(hz, tf.where(chosen, low, 0.0), tf.where(chosen, high, np.inf))
        gain = limited if gain is None else gain * limited
    return gain


def _noise(speech, real, draws: Draws, grid: tuple, channel, settings: AugmentationConfig):
    """Return the noise to add to speech, [B, S]: coloured noise, or babble of the other rows."""
    length, hz = grid
    gain = noise_gain(hz, draws.uniform("noise slope", NOISE_SLOPES))
    if channel is not None:
        gain = gain * channel
    real_part, imaginary = tf.unstack(draws.normal("noise spectrum", 2, tf.shape(hz)[0]), axis=1)
    noise = tf.signal.irfft(tf.complex(real_part * gain, imaginary * gain), [length])
    noise = noise[:, : tf.shape(speech)[1]]
    if settings.babble_fraction:
        others = draws.between_rows("babble levels") ** 4  # few are loud
        others = tf.linalg.set_diag(others, tf.zeros_like(others[:, 0]))
        babble = tf.where(real, float32_matmul(others, speech), 0.0)
        # A row may be alone, without others that babble.
        is_babble = draws.chosen("babble", settings.babble_fraction) & (_energy(babble) > 0.0)
        noise = tf.where(is_babble, babble, noise)
    snr_db = draws.uniform("snr", (settings.noise_min_snr_db, settings.noise_max_snr_db))
    noise = noise_at_snr(speech, tf.where(real, noise, 0.0), snr_db)
    return tf.where(draws.chosen("noise", settings.noise_probability), noise, 0.0)


def impulse_response(noise, rt60_s, direct_to_reverberant_db, chosen):
    """Return impulse responses of rooms: direct sound, then decaying noise (Polack 1988).

    Normal noise [B, R], the time in which the tail falls by 60 dB, the ratio of the energies of
    direct sound and tail, and whether there is a tail, [B, 1] -> [B, R], 1 at the first sample.
    """
    time_s = (np.arange(noise.shape[1]) / sample_rate_hz()).astype(np.float32)
    tail = (noise * tf.exp(-3.0 * float(np.log(10.0)) * time_s / rt60_s))[:, 1:]
    level = tf.sqrt(10.0 ** (-direct_to_reverberant_db / 10.0) / _energy(tail))
    return tf.concat([tf.ones_like(tail[:, :1]), tail * tf.where(chosen, level, 0.0)], axis=1)


def equaliser_gain(hz, centre_hz, gain_db, octaves):
    """Return the gain of peaks that are normal curves over the logarithm of the frequency.

    Frequencies [K], and centre, height and standard deviation of each peak, [B, peaks] -> factors
    on the amplitude, [B, K].
    """
    octave = tf.math.log(tf.maximum(hz, 1.0)) / float(np.log(2.0))
    centre = tf.math.log(centre_hz) / float(np.log(2.0))
    curves = []
    for i in range(gain_db.shape[1]):
        distance = (octave - centre[:, i, None]) / octaves[:, i, None]
        curves.append(gain_db[:, i, None] * tf.exp(-0.5 * tf.square(distance)))
    return tf.exp(tf.add_n(curves) * float(np.log(10.0) / 20.0))


def band_pass_gain(hz, low_hz, high_hz):
    """Return the gain of a high pass and a low pass of order 6 (Butterworth 1930).

    Frequencies [K], and those where the gain is -3 dB, [B, 1]; 0 and infinity turn a side off ->
    factors on the amplitude, [B, K].
    """
    below = tf.square(tf.square(low_hz / tf.maximum(hz, 1.0)))
    above = tf.square(tf.square(hz / high_hz))
    return tf.math.rsqrt((1.0 + below * below * below) * (1.0 + above * above * above))


def noise_gain(hz, slope):
    """Return f^-slope, flat below NOISE_FLOOR_HZ: float32 [K], [B, 1] -> amplitudes [B, K]."""
    return tf.exp(-slope * tf.math.log(tf.maximum(hz, NOISE_FLOOR_HZ) / NOISE_FLOOR_HZ))


def noise_at_snr(speech, noise, snr_db):
    """Scale noise [B, S] to an SNR [B, 1] over the whole row; a silent row gets no noise."""
    ratio = tf.math.divide_no_nan(_energy(speech), _energy(noise))
    return noise * tf.sqrt(ratio * 10.0 ** (-snr_db / 10.0))


def mu_law(wave, bits):
    """Quantise waves as G.711 does, with 2^bits - 1 levels instead of 256; 0 stays 0.

    float32 [B, S], clipped to [-1, 1], and whole numbers float32 [B, 1] -> float32 [B, S].
    """
    steps = tf.round(2.0 ** (bits - 1.0)) - 1.0  # on each side of 0
    scale = float(np.log1p(MU))
    compressed = tf.math.log1p(MU * tf.minimum(tf.abs(wave), 1.0)) / scale
    return tf.sign(wave) * tf.math.expm1(tf.round(compressed * steps) / steps * scale) / MU


# The drawn speed gives a new length, which is rounded, and not below `fewest`. The speed is then
# computed again from both lengths, so that the row ends exactly at its new length. Lengths are
# computed on the host, as all shapes are; only the samples themselves are interpolated on the
# device.
def perturb_speed(waves, samples, fewest, seed, limit: float):
    """Change speed and pitch of each row by a factor of 1 ± limit, up to 0.2 (Ko et al. 2015).

    Interpolates by cubics, whose error is 55 dB below a tone of 2 kHz and 32 dB below one of 4 kHz;
    a windowed sinc of eight samples took 2.5 times as long. What a higher speed moves above half
    the sample rate is folded to frequencies above the mel's.

    float32 [B, S]; the real samples of each row, and those that a longer row keeps at least, int32
    [B] in host memory -> float32 [B, S / (1 - limit), rounded up], 0 after the end of a row, and
    int32 [B].
    """
    padded = tf.shape(waves)[1]
    with on_host():
        speed = stateless_uniform(tf.shape(samples), seed, 1.0 - limit, 1.0 + limit)
        before = tf.cast(samples, tf.float64)
        after = tf.cast(tf.round(before / tf.cast(speed, tf.float64)), tf.int32)
        after = tf.maximum(after, tf.minimum(fewest, samples))
        speed = before / tf.cast(tf.maximum(after, 1), tf.float64)  # of the whole row, exactly
        longest = tf.cast(tf.math.ceil(tf.cast(padded, tf.float64) / (1.0 - limit)), tf.int32)
        last = tf.cast(padded - 1, tf.float64)
        length = tf.cast(longest, tf.float64)
    position = tf.minimum(counted(length) * speed[:, None], last)
    changed = _interpolated(tf.where(tf.sequence_mask(samples, padded), waves, 0.0), position)
    return tf.where(tf.sequence_mask(after, longest), changed, 0.0), after


def _interpolated(waves, position):
    """Interpolate waves: float32 [B, S], positions float64 [B, L] -> float32 [B, L]."""
    # A position becomes the index of the sample before it, and one of PHASES places behind that
    # sample.
    steps = tf.cast(tf.round(position * PHASES), tf.int64)
    index = tf.bitwise.right_shift(steps, tf.constant(PHASES.bit_length() - 1, tf.int64))
    phase = tf.bitwise.bitwise_and(steps, tf.constant(PHASES - 1, tf.int64))
    padded = tf.pad(waves, [[0, 0], [1, 2]])
    samples = tf.shape(waves)[1]
    # A gather of 4 values takes as long.
    neighbours = tf.stack([padded[:, i : i + samples] for i in range(4)], axis=2)
    neighbours = tf.gather(neighbours, index, batch_dims=1)
    return tf.reduce_sum(neighbours * tf.gather(_LAGRANGE_WEIGHTS, phase), axis=2)


def _energy(wave):
    return tf.reduce_sum(tf.square(wave), axis=1, keepdims=True)


def spec_augment(mel, frames, seed, settings: ASRConfig):
    """Replace masked values by the mean of their band over the real frames of the row.

    Width and position of a mask are uniform among all that fit; masks may overlap. The largest
    width in time is proportional to the length of the utterance (adaptive masks, Park et al. 2020).
    Frames after the end of a row are unchanged.

    Mel float32 [B, T, bands], frames int32 [B] -> float32 [B, T, bands].
    """
    padded, bands = tf.shape(mel)[1], mel.shape[2]
    real = tf.sequence_mask(frames, padded)[:, :, None]
    length = tf.cast(frames, tf.float32)
    longest = tf.floor(length * settings.time_mask_fraction)
    widest = tf.fill(tf.shape(frames), float(settings.frequency_mask_bands))
    all_bands = tf.fill(tf.shape(frames), float(bands))
    time = _mask(longest, length, padded, settings.time_masks, fold_in(seed, "time masks"))
    frequency = _mask(widest, all_bands, bands, settings.frequency_masks, fold_in(seed, "bands"))
    masked = real & (time[:, :, None] | frequency[:, None, :])
    count = tf.maximum(length, 1.0)[:, None, None]
    mean = tf.reduce_sum(tf.where(real, mel, 0.0), axis=1, keepdims=True) / count
    return tf.where(masked, mean, mel)


def _mask(largest, length, padded, masks, seed):
    """Return bool [B, padded]: `masks` random spans of up to `largest` [B] within `length` [B].

    Lengths are whole numbers in float32, since a GPU adds int32 on the host.
    """
    width, position = tf.unstack(stateless_uniform([2, tf.shape(length)[0], masks], seed))
    width = tf.floor(width * (largest + 1.0)[:, None])
    start = tf.floor(position * (length[:, None] - width + 1.0))
    index = tf.cast(tf.range(padded), tf.float32)[None, None, :]
    inside = (index >= start[:, :, None]) & (index < (start + width)[:, :, None])
    return tf.reduce_any(inside, axis=1)
