"""Whether XLA can compile for a device, where it needs more than TensorFlow's own kernels."""

from functools import cache

import tensorflow as tf


@cache
def xla_failure(device: str, whole_step: bool = False) -> str | None:
    """Compile and run a small function on a device; return the reason if that fails.

    A GPU that runs TensorFlow's kernels may lack what XLA needs: a code generator for its compute capability, ptxas or
    libdevice of the CUDA toolkit, or a cuDNN whose convolutions XLA can call. The outcome is kept for the process.

    Args:
        whole_step: try also what a training step has beyond a loop: a convolution with its gradient, a matrix product
            and an exponential function, which needs libdevice.
    """
    function = tf.function(_step_operations if whole_step else _loop, jit_compile=True, autograph=False)
    try:
        with tf.device(device):
            function(tf.ones([1, 8, 8])).numpy()
    except tf.errors.OpError as error:
        return f"{type(error).__name__}: {error.message.splitlines()[0].rstrip('.')}"
    return None


def _loop(x):
    return tf.while_loop(lambda i, _: i < 4, lambda i, x: (i + 1, tf.maximum(x, 1.0) + x[:, ::-1]), (0, x))[1]


def _step_operations(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.exp(tf.nn.conv1d(x, tf.ones([5, 8, 8]), 1, "SAME") - tf.matmul(x, x))
    return _loop(tape.gradient(y, x))
