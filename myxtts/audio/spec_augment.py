"""SpecAugment (Park et al. 2019): random masks in time and frequency for speech recognition."""

import tensorflow as tf

from myxtts.portable_ops import fold_in


def spec_augment(
    mel,
    frames,
    seed,
    time_masks: int,
    time_fraction: float,
    frequency_masks: int,
    frequency_bands: int,
):
    """Replace masked values by the mean of their band over the real frames of the row.

    The paper masks with 0, in features of mean 0. The width of each mask is uniform from 0 to the
    largest width, and its position is uniform among all that fit; masks may overlap. The largest
    width in time is proportional to the length of the utterance (adaptive masks, Park et al. 2020).
    Frames after the end of a row are unchanged.

    Args:
        mel: float32 [B, T, bands].
        frames: int32 [B].
        seed: int32 [2]; each row gets its own masks.
        time_masks, frequency_masks: number of masks; 0 means none.
        time_fraction: largest width of a time mask as a fraction of the frames of the row, up to 1.
        frequency_bands: largest width of a frequency mask in bands.

    Returns:
        float32 [B, T, bands].
    """
    padded = tf.shape(mel)[1]
    bands = mel.shape[2]
    real = tf.sequence_mask(frames, padded)[:, :, None]
    length = tf.cast(frames, tf.float32)
    longest = tf.floor(length * time_fraction)
    widest = tf.fill(tf.shape(frames), float(frequency_bands))
    all_bands = tf.fill(tf.shape(frames), float(bands))
    time = _mask(longest, length, padded, time_masks, fold_in(seed, "time masks"))
    frequency = _mask(widest, all_bands, bands, frequency_masks, fold_in(seed, "bands"))
    masked = real & (time[:, :, None] | frequency[:, None, :])
    count = tf.maximum(length, 1.0)[:, None, None]
    mean = tf.reduce_sum(tf.where(real, mel, 0.0), axis=1, keepdims=True) / count
    return tf.where(masked, mean, mel)


def _mask(largest, length, padded, masks, seed):
    """Return bool [B, padded]: `masks` random spans of up to `largest` [B] within `length` [B].

    Lengths are whole numbers in float32, since a GPU adds int32 on the host.
    """
    width, position = tf.unstack(tf.random.stateless_uniform([2, tf.shape(length)[0], masks], seed))
    width = tf.floor(width * (largest + 1.0)[:, None])
    start = tf.floor(position * (length[:, None] - width + 1.0))
    index = tf.cast(tf.range(padded), tf.float32)[None, None, :]
    inside = (index >= start[:, :, None]) & (index < (start + width)[:, :, None])
    return tf.reduce_any(inside, axis=1)
