"""Seeds of independent random numbers, derived from the seed of a batch."""

from zlib import crc32

import tensorflow as tf


def fold_in(seed, name: str):
    """Derive a new seed from a seed and a name: int32 [2] -> int32 [2]. Use each name once.

    A seed gives the same numbers on CPU and GPU, but different ones in a function compiled by XLA.
    """
    return tf.random.experimental.stateless_fold_in(seed, crc32(name.encode()) & 0x7FFFFFFF)
