"""Matrix products that keep the precision of float32 on every GPU."""

from collections.abc import Callable
from functools import wraps

import tensorflow as tf

from myxtts import tf_internals

FRAMES_GRID = (
    64  # a tenth more work for a sentence of 4 s, and 16 shapes for all sentences below 12 s
)


def float32_matmul(a, b, **transposed):
    """Multiply float32 matrices as `tf.matmul` does, but never in TF32. For features, targets and
    alignments.

    GPUs since Ampere round the factors of a float32 product to TF32, with 10 bits of mantissa
    instead of 23. So on a GPU this product is computed in float64, unless TF32 is turned off. On a
    CPU it is `tf.matmul`.

    The device is that of the scope in which the product is traced: see `function_per_device_type`.

    Args:
        a, b: float32, as for `tf.matmul`.
        transposed: `transpose_a` and `transpose_b`, as for `tf.matmul`.

    Returns:
        float32.
    """
    if not _may_round_to_tf32():
        return tf.matmul(a, b, **transposed)
    return tf.cast(
        tf.matmul(tf.cast(a, tf.float64), tf.cast(b, tf.float64), **transposed), tf.float32
    )


def grid_padding(frames):
    """Return how many frames fill up a length, int32 scalar, that is new with each input, to a
    multiple of FRAMES_GRID.

    On a CPU, oneDNN keeps what it has prepared for each shape of a product: 0.1 to 0.8 MB for each
    length.
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


def _may_round_to_tf32() -> bool:
    """Return whether the device in scope is a GPU that may round; older ones do not, and float64
    does no harm there.
    """
    enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    return enabled and tf_internals.device_type_in_scope() == "GPU"
