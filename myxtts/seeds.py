"""Randomness of a batch, from its own seed."""

from zlib import crc32

import tensorflow as tf


def fold_in(seed, name: str):
    """The seed of what is drawn under a name: int32 [2] -> int32 [2]. Each name is used once.

    One seed gives the same numbers on CPU and GPU; compiled by XLA it gives others.
    """
    return tf.random.experimental.stateless_fold_in(seed, crc32(name.encode()) & 0x7FFFFFFF)
