"""Whether XLA can compile for a device, where it needs more than TensorFlow's own kernels."""

from functools import cache

import tensorflow as tf

# LLVM ends the process: its PTX 8.5 does not support sm_120
# (github.com/tensorflow/tensorflow/issues/111958).
UNSUPPORTED_CAPABILITY = (12, 0)


@cache
def xla_failure(device: str, whole_step: bool = False) -> str | None:
    """Compile and run a small function on a device; return the reason if that fails.

    A GPU that runs TensorFlow's kernels may lack what XLA needs: a code generator for its compute
    capability, ptxas or libdevice of the CUDA toolkit, or a cuDNN whose convolutions XLA can call.
    The outcome is kept for the process.

    Args:
        whole_step: try also what a training step has beyond a loop: a convolution with bias, which
            XLA fuses, with its gradient, a matrix product, and an exponential function, which needs
            libdevice.
    """
    if reason := _unsupported_gpu(device):
        return reason
    function = tf.function(
        _step_operations if whole_step else _loop, jit_compile=True, autograph=False
    )
    try:
        with tf.device(device):
            function(tf.ones([1, 8, 8])).numpy()
    except tf.errors.OpError as error:
        return f"{type(error).__name__}: {error.message.splitlines()[0].rstrip('.')}"
    return None


def _unsupported_gpu(device: str) -> str | None:
    """Return why XLA must not be tried: without a target, LLVM ends the process."""
    gpus = tf.config.get_visible_devices("GPU") if "GPU:" in device else []
    details = map(tf.config.experimental.get_device_details, gpus)
    capability = max(
        (detail.get("compute_capability", (0, 0)) for detail in details), default=(0, 0)
    )
    if capability < UNSUPPORTED_CAPABILITY:
        return None
    number = ".".join(map(str, capability))
    return f"XLA of TensorFlow {tf.__version__} generates no code for compute capability {number}"


def _loop(x):
    return tf.while_loop(
        lambda i, _: i < 4, lambda i, x: (i + 1, tf.maximum(x, 1.0) + x[:, ::-1]), (0, x)
    )[1]


def _step_operations(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        convolution = tf.nn.bias_add(tf.nn.conv1d(x, tf.ones([5, 8, 8]), 1, "SAME"), tf.ones([8]))
        y = tf.exp(convolution - tf.matmul(x, x))
    return _loop(tape.gradient(y, x))
