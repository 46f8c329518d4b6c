"""Which devices there are, and on which one values are: TensorFlow silently takes another one."""

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from .errors import PlacementError


def require_existing(device: str) -> None:
    """Raise PlacementError for a device that this process does not have."""
    names = [found.name.replace("device:", "") for found in tf.config.list_logical_devices()]
    if device.replace("device:", "") not in names:
        raise PlacementError(f"there is no device {device}; give one of {', '.join(names)}.")


def require_device(device: str, named: Iterable[tuple[str, object]]) -> None:
    """Check that tensors and variables are on a device, or raise PlacementError: TensorFlow
    silently copies tensors and moves operations.

    NumPy arrays are in host memory and not checked. int32 tensors may be in host memory:
    TensorFlow's functions return them there. Pairs have a name for the message and a tensor,
    `tf.Variable` or Keras variable; a device may have job and task.
    """
    expected = tf.DeviceSpec.from_string(device)
    misplaced = []
    for name, value in named:
        if isinstance(value, np.ndarray | np.generic):
            continue
        spec = _device(value)
        is_host_integer = getattr(value, "dtype", None) == tf.int32 and spec.device_type == "CPU"
        if isinstance(value, tf.Tensor) and is_host_integer:
            continue
        # This process, also in a cluster: tf.data does not know its job and task.
        is_here = spec.job == "localhost"
        wanted = expected.replace(job=None, replica=None, task=None) if is_here else expected
        if spec.make_merged_spec(wanted) != spec:
            short = f"/{spec.device_type}:{spec.device_index}"
            place = spec.to_string() if expected.job else short
            misplaced.append(f"{name} on {place}")
    if misplaced:
        raise PlacementError(
            f"all values must be on {device}, but found {', '.join(misplaced[:5])}"
            f" ({len(misplaced)} in all). This is a defect of the program or of a custom model:"
            " build and call it inside tf.device."
        )


def _device(value) -> tf.DeviceSpec:
    # `device` would be that of the function call that returned the tensor.
    if isinstance(value, tf.Tensor):
        return tf.DeviceSpec.from_string(value.backing_device)
    variable = value if isinstance(value, tf.Variable) else value.value
    return tf.DeviceSpec.from_string(variable.device)
