"""Prosody of tokens: duration, pitch and energy."""

from typing import NamedTuple

import tensorflow as tf

from myxtts.portable_ops import float32_matmul

# The network's unit of pitch: distance from 150 Hz, between usual low and high voices, in units of
# 3 semitones.
PITCH_CENTRE_HZ = 150.0
PITCH_UNIT_SEMITONES = 3.0
# 2.3 s: limits the durations of an untrained predictor.
MAX_TOKEN_FRAMES = 200.0


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
    octaves = tf.math.log(tf.maximum(f0_hz, 1.0) / PITCH_CENTRE_HZ) / tf.math.log(2.0)
    pitch = octaves * (12.0 / PITCH_UNIT_SEMITONES)
    values = [tf.ones_like(voiced), voiced, voiced * pitch, tf.reduce_mean(mel, axis=2)]
    sums = float32_matmul(tf.one_hot(path, tokens), tf.stack(values, axis=-1), transpose_a=True)
    frames, voiced_frames, pitch, energy = tf.unstack(sums, axis=-1)
    duration = tf.maximum(frames, 1.0)
    pitch /= tf.maximum(voiced_frames, 1.0)
    prosody = Prosody(tf.math.log(duration), voiced_frames / duration, pitch, energy / duration)
    return prosody, frames


def prosody_errors(predicted: Prosody, target: Prosody):
    """Return squared errors of each token by loss, [B, N]; pitch by its voiced fraction."""
    duration, voiced, pitch, energy = (
        tf.square(left - right) for left, right in zip(predicted, target, strict=True)
    )
    return {"duration": duration, "pitch": target.voiced * pitch + voiced, "energy": energy}


def pitch_hz(pitch):
    """Return frequencies in Hz of pitches in the unit of `Prosody.pitch`."""
    return PITCH_CENTRE_HZ * tf.exp(pitch * (PITCH_UNIT_SEMITONES / 12.0) * tf.math.log(2.0))


def token_ends(log_duration, mask, speed):
    """Return the end frame of each token, float32 [B, N]; padding ends with the last one.

    Ends are rounded instead of durations, so that rounding errors do not add up over a sentence.
    """
    duration = tf.clip_by_value(tf.exp(log_duration) / speed, 1.0, MAX_TOKEN_FRAMES)
    return tf.floor(tf.cumsum(duration * mask, axis=1) + 0.5)  # round() halves to even


def token_ends_within(log_duration, mask, limit):
    """Return `token_ends`, with shorter tokens where these exceed `limit` frames.

    The limit is a whole number, float32. Only what a token has beyond one frame is shortened, so
    that each of up to `limit` tokens keeps a frame.
    """
    ends = token_ends(log_duration, mask, 1.0)
    beyond_one = tf.clip_by_value(tf.exp(log_duration), 1.0, MAX_TOKEN_FRAMES) * mask - mask
    room = tf.maximum(limit - tf.reduce_sum(mask, axis=1, keepdims=True), 0.0)
    share = room / tf.maximum(tf.reduce_sum(beyond_one, axis=1, keepdims=True), 1.0)
    shortened = tf.floor(tf.cumsum(mask + share * beyond_one, axis=1) + 0.5)
    return tf.where(ends[:, -1:] <= limit, ends, shortened)
