"""Operations that give the same numbers, in the same way, on CPUs and GPUs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from zlib import crc32

import tensorflow as tf

from myxtts.base import tf_internals

# A tenth more work for a sentence of 4 s, and 16 shapes for all sentences below 12 s.
FRAMES_GRID = 64
HOST_SCOPE = "on_host"


@contextmanager
def on_host() -> Iterator[None]:
    """Run operations on the host, also within a function for a GPU; XLA ignores this.

    For small values that the host needs: with kernels on a GPU the host would wait for it.
    """
    device = tf.device("/CPU:0") if tf_internals.device_type_in_scope() == "GPU" else nullcontext()
    with tf.name_scope(HOST_SCOPE), device:
        yield


def fold_in(seed, name: str):
    """Derive a new seed from a seed and a name: int32 [2] -> int32 [2]. Use each name once.

    A seed gives the same numbers on CPU and GPU, but different ones in a function compiled by XLA.
    Seeds are drawn on the host, where TensorFlow wants them: the kernels of a step would wait for a
    seed that is drawn on its GPU.
    """
    with on_host():
        return tf.random.experimental.stateless_fold_in(seed, crc32(name.encode()) & 0x7FFFFFFF)


def stateless_uniform(shape, seed, low=0.0, high=1.0, dtype=tf.float32):
    """Return the numbers of `tf.random.stateless_uniform`, by the kernel that it had before.

    That one takes the seed from the host's memory. The newer one takes a key and a counter from the
    GPU's: two copies in each draw, which wait for all that is queued on the GPU.
    """
    uniform = tf.raw_ops.StatelessRandomUniform(shape=shape, seed=seed, dtype=dtype)
    if (low, high) == (0.0, 1.0):
        return uniform
    return uniform * (high - low) + low


def stateless_normal(shape, seed):
    """Return the numbers of `tf.random.stateless_normal`; see `stateless_uniform`."""
    return tf.raw_ops.StatelessRandomNormal(shape=shape, seed=seed)


def indices(count, first=0):
    """Return the integers from `first` on, int64 [count]; both are int32 scalars.

    On a GPU, int32 is computed on the host and then copied to the GPU, behind all that is queued
    there. This kernel takes its arguments from the host's memory and writes to the GPU's.
    """
    with on_host():
        first, limit, step = (tf.cast(number, tf.int64) for number in (first, first + count, 1))
    return tf.raw_ops.Range(start=first, limit=limit, delta=step)


def float32_matmul(a, b, **transposed):
    """Multiply float32 matrices as `tf.matmul` does, but never in TF32.

    GPUs since Ampere round the factors of a float32 product to TF32, with 10 bits of mantissa
    instead of 23. So on a GPU this product is computed in float64, unless TF32 is turned off. The
    device scope counts in which the product is traced: see `function_per_device_type`.
    """
    may_round = tf.config.experimental.tensor_float_32_execution_enabled()
    if not may_round or tf_internals.device_type_in_scope() != "GPU":
        return tf.matmul(a, b, **transposed)
    product = tf.matmul(tf.cast(a, tf.float64), tf.cast(b, tf.float64), **transposed)
    return tf.cast(product, tf.float32)


def grid_padding(frames):
    """Return the frames, int32 scalar, that fill up a length to a multiple of FRAMES_GRID.

    For lengths that are new with each input. On a CPU, oneDNN keeps what it has prepared for each
    shape of a product: 0.1 to 0.8 MB for each length.
    """
    return -frames % FRAMES_GRID


def function_per_device_type(*signature: tf.TensorSpec) -> Callable[[Callable], Callable]:
    """Return a decorator like `tf.function` that traces a function for CPUs and GPUs apart.

    `tf.function` alone calls the trace for the first device on all devices.
    """

    def compile_function(function: Callable) -> Callable:
        compiled = {
            kind: tf.function(function, input_signature=signature, autograph=False)
            for kind in ("CPU", "GPU")
        }
        return wraps(function)(lambda *args: compiled[tf_internals.device_type_in_scope()](*args))

    return compile_function
