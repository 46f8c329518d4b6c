"""Where tensors are, against where they were promised to be."""

from collections.abc import Iterable

import tensorflow as tf

from myxtts.errors import PlacementError


def require_device(device: str, named: Iterable[tuple[str, object]]) -> None:
    """Check that tensors and variables live on a device.

    TensorFlow copies between devices and moves operations in silence; this makes it speak.

    Args:
        device: such as `/GPU:1`.
        named: pairs of a name for the message and a tensor, `tf.Variable` or Keras variable.

    Raises:
        PlacementError: naming up to five that are elsewhere.
    """
    strays = [f"{name} on {_device(value)}" for name, value in named if _device(value) != device]
    if strays:
        more = f" and {len(strays) - 5} more" if len(strays) > 5 else ""
        raise PlacementError(
            f"{device} was promised, but found {', '.join(strays[:5])}{more}. This is a defect of the program "
            "or of a custom model: build and call it inside tf.device."
        )


def _device(value) -> str:
    tensor = getattr(value, "value", value)
    full = tensor.device if isinstance(tensor, tf.Variable | tf.Tensor) else value.device
    spec = tf.DeviceSpec.from_string(full)
    return f"/{spec.device_type}:{spec.device_index}"
