"""Prosody of tokens: duration, pitch and energy."""

from typing import NamedTuple

import tensorflow as tf

from myxtts.audio.pitch import F0_MAX_HZ, F0_MIN_HZ
from myxtts.base.portable_ops import float32_matmul, fold_in, stateless_normal

# The network's unit of pitch: distance from 150 Hz, between usual low and high voices, in units of
# 3 semitones.
PITCH_CENTRE_HZ = 150.0
PITCH_UNIT_SEMITONES = 3.0
PITCH_UNITS_PER_OCTAVE = 12.0 / PITCH_UNIT_SEMITONES
# 2.3 s: limits the durations of an untrained predictor.
MAX_TOKEN_FRAMES = 200.0
# The least standard deviation that is predicted, so that a likelihood stays finite.
MIN_STD = 0.05
# Logarithm of the frames of a pause, 0.23 s, before anything is learnt, and its log-odds.
PAUSE_LOG_DURATION, PAUSE_LOGIT = 3.0, -2.0
# Errors beyond 3 standard deviations count linearly. One octave error, a laugh or a token that
# swallows a pause would otherwise outweigh a hundred tokens.
LINEAR_ERROR = 3.0
NOISE_TOKENS = 1 << 14
# Durations get half of the variety. With all of it, only 58 % of the sentences of a reader were
# within 10 % of the length of his recordings.
DURATION_VARIETY = 0.5
# Neighbouring tokens vary alike. These are the correlations of their residuals, on one reader;
# durations have none.
CORRELATIONS = {"pitch": 0.8, "energy": 0.6}
OUTPUTS = 10
# Fraction of the pitches of a speaker's tokens below his range, and as many lie above. Beyond what
# it has learnt, a decoder makes bursts: of 65 and 273 dB, half an octave above the mean.
BEYOND_RANGE = 0.01


class Prosody(NamedTuple):
    """Prosody of each token, float32 [B, N]."""

    log_duration: tf.Tensor  # natural logarithm of the frames
    voiced: tf.Tensor  # fraction of the frames that have a pitch
    pitch: tf.Tensor  # mean over these frames, in units of 3 semitones from 150 Hz
    energy: tf.Tensor  # mean normalised log-mel, relative to the speaker's average spectrum

    def features(self):
        """Return the decoder's input, float32 [B, N, 3]; an unvoiced token has no pitch."""
        return tf.stack([self.voiced, self.voiced * self.pitch, self.energy], axis=-1)


def target_prosody(mel, f0_hz, path, tokens):
    """Return the prosody of recorded utterances, and the frames of each token, float32 [B, N].

    Mel [B, T, 80], normalised and relative to the speaker's average spectrum; F0 [B, T], 0 where
    unvoiced; the token of each frame, integers [B, T], -1 for padding; and N.
    """
    voiced = tf.cast(f0_hz > 0.0, tf.float32)
    pitch = voiced * pitch_of_hz(tf.maximum(f0_hz, 1.0))
    values = [tf.ones_like(voiced), voiced, pitch, tf.reduce_mean(mel, axis=2)]
    sums = float32_matmul(tf.one_hot(path, tokens), tf.stack(values, axis=-1), transpose_a=True)
    frames, voiced_frames, pitch, energy = tf.unstack(sums, axis=-1)
    duration = tf.maximum(frames, 1.0)
    pitch /= tf.maximum(voiced_frames, 1.0)
    prosody = Prosody(tf.math.log(duration), voiced_frames / duration, pitch, energy / duration)
    return prosody, frames


class ProsodyDistribution(NamedTuple):
    """A normal distribution for each token; voicing has only a mean.

    The logarithm of a duration has two: a comma is a pause or none, and one distribution as wide as
    both draws pauses that nobody makes. People do not say a sentence twice in the same way, and the
    errors of a mean alone, squared, would be most of the gradient.
    """

    mean: Prosody
    std: Prosody  # of log_duration, pitch and energy; that of voiced is 0
    pause_logit: tf.Tensor  # log-odds of the second distribution of durations, float32 [B, N]
    pause_mean: tf.Tensor  # its mean and standard deviation, as log_duration
    pause_std: tf.Tensor
    lowest_pitch: tf.Tensor  # quantiles of the speaker's pitches, in the unit of pitch, [B, 1]
    highest_pitch: tf.Tensor

    @classmethod
    def of_outputs(cls, outputs, range_outputs) -> "ProsodyDistribution":
        """Return the distribution of outputs for the tokens, float32 [B, N, OUTPUTS], and for the
        range of the speaker, [B, 2], where 0 is the range of all voices.
        """
        log_duration, voiced, pitch, energy, logit, pause, *stds = tf.unstack(outputs, axis=-1)
        duration_std, pitch_std, energy_std, pause_std = (
            MIN_STD + tf.nn.softplus(std) for std in stds
        )
        mean = Prosody(log_duration, tf.sigmoid(voiced), pitch, energy)
        std = Prosody(duration_std, tf.zeros_like(voiced), pitch_std, energy_std)
        pause_logit, pause_mean = PAUSE_LOGIT + logit, PAUSE_LOG_DURATION + pause
        pitch_range = range_outputs + pitch_of_hz(tf.constant([F0_MIN_HZ, F0_MAX_HZ]))
        lowest, highest = tf.split(pitch_range, 2, axis=1)
        return cls(mean, std, pause_logit, pause_mean, pause_std, lowest, highest)

    # A recorded duration may be that of a spoken token or of a pause. Both likelihoods are
    # computed, each times the probability of its kind, and added. Pitch counts as far as a token is
    # voiced; the two ends of the speaker's range are learnt along with it, as quantiles of the same
    # pitches.
    def errors(self, target: Prosody):
        """Return the negative log-likelihood of each token by loss, [B, N].

        Without its constants, at least 0, and linear in errors beyond LINEAR_ERROR deviations.
        Pitch includes the squared error of voicing, and the loss of the speaker's range, which is
        least at the quantiles (Koenker & Bassett 1978).
        """
        mean, std = self.mean, self.std
        spoken = unlikelihood(mean.log_duration, std.log_duration, target.log_duration)
        pause = unlikelihood(self.pause_mean, self.pause_std, target.log_duration)
        is_spoken = tf.math.log_sigmoid(-self.pause_logit) - spoken
        is_pause = tf.math.log_sigmoid(self.pause_logit) - pause
        pitch = unlikelihood(mean.pitch, std.pitch, target.pitch)
        for inside in (target.pitch - self.lowest_pitch, self.highest_pitch - target.pitch):
            pitch += tf.maximum(BEYOND_RANGE * inside, (BEYOND_RANGE - 1.0) * inside)
        return {
            # The logarithm of the sum of both.
            "duration": -(is_spoken + tf.nn.softplus(is_pause - is_spoken)),
            "pitch": target.voiced * pitch + tf.square(mean.voiced - target.voiced),
            "energy": unlikelihood(mean.energy, std.energy, target.energy),
        }

    def average(self) -> Prosody:
        """Return the mean prosody, with the mean of the distributions of durations.

        The exponential of the mean logarithm is shorter: by 17 % on a reader.
        """
        frames = _frames_of(self.mean.log_duration + 0.5 * tf.square(self.std.log_duration))
        pause_frames = _frames_of(self.pause_mean + 0.5 * tf.square(self.pause_std))
        frames += tf.sigmoid(self.pause_logit) * (pause_frames - frames)
        return self.mean._replace(log_duration=tf.math.log(frames))

    # Whether a token is a pause is drawn first, by its log-odds. Its duration is drawn from the
    # distribution of that kind, and mixed with the average by the share of variety. Pitch and
    # energy deviate from their means together with their neighbours'. Pitch is then kept within the
    # range.
    def sample(self, variety, seed, texts) -> Prosody:
        """Draw a prosody: `variety`, a scalar from 0, the average, to 1, what people vary.

        The noise is a function of seed and text: int32 [2], and token ids, int32 [B, N], padded
        with 0. So a speaker does not begin each sentence alike.
        """

        def noise(name, correlation=0.0):
            return correlated_noise(texts, correlation, fold_in(seed, name))

        average = self.average()
        # A normal variable is below x with probability (1 + erf(x / sqrt(2))) / 2.
        uniform = 0.5 + 0.5 * tf.math.erf(noise("pause") * 0.5**0.5)
        is_pause = uniform < tf.sigmoid(self.pause_logit)
        mean = tf.where(is_pause, self.pause_mean, self.mean.log_duration)
        std = tf.where(is_pause, self.pause_std, self.std.log_duration)
        drawn = mean + std * noise("log_duration")
        # Frames between the average and those drawn, whose mean is the average at each variety.
        share = DURATION_VARIETY * variety
        frames = (1.0 - share) * tf.exp(average.log_duration) + share * _frames_of(drawn)
        varied = {
            name: getattr(self.mean, name)
            + variety * getattr(self.std, name) * noise(name, correlation)
            for name, correlation in CORRELATIONS.items()
        }
        lowest = tf.minimum(self.lowest_pitch, self.mean.pitch)
        highest = tf.maximum(self.highest_pitch, self.mean.pitch)
        varied["pitch"] = tf.clip_by_value(varied["pitch"], lowest, highest)
        return average._replace(log_duration=tf.math.log(frames), **varied)


def _frames_of(log_duration):
    """Return frames, at most MAX_TOKEN_FRAMES: padded tokens, never trained, may have any."""
    return tf.minimum(tf.exp(log_duration), MAX_TOKEN_FRAMES)


def unlikelihood(mean, std, value):
    """Return the negative log-likelihoods of values as in `ProsodyDistribution.errors`."""
    error = tf.abs(value - mean) / std
    near = tf.minimum(error, LINEAR_ERROR)
    return tf.math.log(std / MIN_STD) + near * (error - 0.5 * near)


def correlated_noise(texts, correlation, seed):
    """Return normal noise of unit variance with a correlation of neighbouring tokens: [B, N].

    An autoregressive process of order 1, as a product with a triangular matrix.
    """
    tokens = tf.shape(texts)[1]
    place = tf.range(tokens)
    # Each text has its own place in one long noise.
    begin = tf.reduce_sum(texts * (place + 1), axis=1) % NOISE_TOKENS
    noise = stateless_normal([NOISE_TOKENS], seed)
    noise = tf.gather(noise, (begin[:, None] + place) % NOISE_TOKENS)
    if correlation == 0.0:
        return noise
    distance = tf.cast(place[:, None] - place[None, :], tf.float32)
    weights = tf.where(distance >= 0.0, tf.pow(correlation, distance), 0.0)
    innovation = tf.concat([[1.0], tf.fill([tokens - 1], (1.0 - correlation**2) ** 0.5)], axis=0)
    return tf.matmul(noise * innovation, weights, transpose_b=True)


def pitch_of_hz(hz):
    """Return the pitches, in the unit of `Prosody.pitch`, of frequencies in Hz, float32."""
    return tf.math.log(hz / PITCH_CENTRE_HZ) / tf.math.log(2.0) * PITCH_UNITS_PER_OCTAVE


def pitch_hz(pitch):
    """Return frequencies in Hz of pitches in the unit of `Prosody.pitch`."""
    return PITCH_CENTRE_HZ * tf.exp(pitch / PITCH_UNITS_PER_OCTAVE * tf.math.log(2.0))


def token_ends(log_duration, mask, speed):
    """Return the end frame of each token, float32 [B, N]; padding ends with the last one.

    Ends are rounded instead of durations, so that rounding errors do not add up over a sentence.
    """
    duration = tf.clip_by_value(tf.exp(log_duration) / speed, 1.0, MAX_TOKEN_FRAMES)
    return tf.floor(tf.cumsum(duration * mask, axis=1) + 0.5)  # round() halves to even


def token_ends_within(log_duration, mask, limit):
    """Return `token_ends`, with shorter tokens where these exceed `limit` frames, float32.

    Only what a token has beyond one frame is shortened, so that each keeps a frame.
    """
    ends = token_ends(log_duration, mask, 1.0)
    beyond_one = tf.clip_by_value(tf.exp(log_duration), 1.0, MAX_TOKEN_FRAMES) * mask - mask
    room = tf.maximum(limit - tf.reduce_sum(mask, axis=1, keepdims=True), 0.0)
    share = room / tf.maximum(tf.reduce_sum(beyond_one, axis=1, keepdims=True), 1.0)
    shortened = tf.floor(tf.cumsum(mask + share * beyond_one, axis=1) + 0.5)
    return tf.where(ends[:, -1:] <= limit, ends, shortened)
