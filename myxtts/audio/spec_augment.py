"""SpecAugment (Park et al. 2019): stretches of time and bands of frequency that a recogniser must do without."""

import tensorflow as tf

from myxtts.seeds import fold_in


def spec_augment(mel, frames, seed, time_masks: int, time_fraction: float, frequency_masks: int, frequency_bands: int):
    """Log-mels in which masked values are the mean that their band has over the row's real frames.

    The paper masks with 0 in features of mean 0. Each mask's width is uniform from 0 to the largest, its place
    uniform among all that fit; masks may overlap. The largest width in time grows with the utterance (Park et al.
    2020, adaptive). Frames behind a row's end stay as they are.

    Args:
        mel: float32 [B, T, bands].
        frames: int32 [B].
        seed: int32 [2]; each row has its own masks.
        time_masks, frequency_masks: how many of each; 0 is none.
        time_fraction: largest width of one in time, as a share of the row's frames, up to 1.
        frequency_bands: largest width of one in frequency, up to all bands.

    Returns:
        float32 [B, T, bands].
    """
    padded, bands = tf.shape(mel)[1], mel.shape[2]
    real = tf.sequence_mask(frames, padded)[:, :, None]
    longest = tf.cast(tf.cast(frames, tf.float32) * time_fraction, tf.int32)
    widest = tf.fill(tf.shape(frames), frequency_bands)
    time = _masked(longest, frames, padded, time_masks, fold_in(seed, "time masks"))
    frequency = _masked(widest, tf.fill(tf.shape(frames), bands), bands, frequency_masks, fold_in(seed, "bands"))
    masked = real & (time[:, :, None] | frequency[:, None, :])
    count = tf.cast(tf.maximum(frames, 1), tf.float32)[:, None, None]
    mean = tf.reduce_sum(tf.where(real, mel, 0.0), axis=1, keepdims=True) / count
    return tf.where(masked, mean, mel)


def _masked(largest, length, padded, masks, seed):
    """Bool [B, padded]: True in `masks` random stretches of up to `largest` [B], all in the first `length` [B]."""
    width, place = tf.unstack(tf.random.stateless_uniform([2, tf.shape(length)[0], masks], seed))
    width = tf.cast(width * tf.cast(largest + 1, tf.float32)[:, None], tf.int32)
    start = tf.cast(place * tf.cast(length[:, None] - width + 1, tf.float32), tf.int32)
    position = tf.range(padded)[None, None, :]
    inside = (position >= start[:, :, None]) & (position < (start + width)[:, :, None])
    return tf.reduce_any(inside, axis=1)
