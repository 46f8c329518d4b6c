"""Seeds of independent random numbers, derived from the seed of a batch."""

from zlib import crc32

import tensorflow as tf

from myxtts.placement.host import on_host


def fold_in(seed, name: str):
    """Derive a new seed from a seed and a name: int32 [2] -> int32 [2]. Use each name once.

    A seed gives the same numbers on CPU and GPU, but different ones in a function compiled by XLA.
    Seeds are drawn on the host, where TensorFlow wants them: the kernels of a step would wait for a
    seed that is drawn on its GPU.
    """
    with on_host():
        return tf.random.experimental.stateless_fold_in(seed, crc32(name.encode()) & 0x7FFFFFFF)
