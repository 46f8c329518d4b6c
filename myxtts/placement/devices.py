"""Sets TensorFlow's devices up, once, before it starts.

Visible devices, memory growth and limits cannot change after TensorFlow has made its first tensor.
"""

import logging

import tensorflow as tf

from myxtts.errors import PlacementError
from myxtts.placement.routes import Placement

log = logging.getLogger(__name__)


def gpu_count() -> int:
    """Physical GPUs that TensorFlow sees; does not start them."""
    return len(tf.config.list_physical_devices("GPU"))


def configure(placement: Placement, soft_placement: bool = False) -> None:
    """Make exactly the devices of the placement visible, with growth or limits.

    Args:
        placement: as `plan_routes` gives it.
        soft_placement: let TensorFlow move an operation that a device cannot run. Off, such an
            operation is an error, and so is a device that does not exist.

    Raises:
        PlacementError: TensorFlow has already started with other devices.
    """
    try:
        if placement.on_gpu:
            _configure_gpus(placement)
        else:
            _configure_cpu(placement)
    except RuntimeError as error:  # "Physical/Virtual/Visible devices cannot be modified after being initialized"
        raise PlacementError(
            f"the devices of this run ({placement.name}) were to be set, but TensorFlow had already started: {error}. "
            "Configure devices before the first tensor is made; restart the process or notebook kernel."
        ) from error
    tf.config.experimental.set_device_policy("silent")
    tf.config.set_soft_device_placement(soft_placement)
    for line in describe(placement):
        log.info("%s", line)


def _configure_gpus(placement: Placement) -> None:
    physical = tf.config.list_physical_devices("GPU")
    used = sorted({device.physical for device in placement.devices})
    tf.config.set_visible_devices([physical[i] for i in used], "GPU")
    for i in used:
        limits = [device.memory_mib for device in placement.devices if device.physical == i]
        if limits == [None]:
            tf.config.experimental.set_memory_growth(physical[i], True)
        else:
            parts = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits]
            tf.config.set_logical_device_configuration(physical[i], parts)


def _configure_cpu(placement: Placement) -> None:
    """The CPU itself, or as many logical CPUs as GPUs are simulated; GPUs stay hidden."""
    tf.config.set_visible_devices([], "GPU")
    cpu = tf.config.list_physical_devices("CPU")[0]
    parts = [tf.config.LogicalDeviceConfiguration() for _ in placement.devices]
    tf.config.set_logical_device_configuration(cpu, parts)


def synchronize(tensor: tf.Tensor) -> None:
    """Wait until the device of a tensor is done with it, and with what it was told before, by reading one element.

    Not for int32, which TensorFlow keeps in the host's memory, where it is known before a GPU has done anything.
    """
    with tf.device(tensor.device):
        tf.reshape(tensor, [-1])[:1].numpy()


def describe(placement: Placement) -> list[str]:
    """The placement as lines for the log: which GPU became which device, limits, routes."""
    lines = [f"placement      {placement.name}" + (" (GPUs simulated on the CPU)" if placement.simulated else "")]
    for device in placement.devices:
        source = "CPU" if device.physical is None else f"GPU {device.physical}"
        source = f"simulated {source}" if placement.simulated else source
        memory = "memory grows as needed" if device.memory_mib is None else f"at most {device.memory_mib} MiB"
        if placement.simulated and device.memory_mib is not None:
            memory += " (not applied: the device is simulated)"
        lines.append(f"  device       {source} is {device.name}, {memory}")
    lines += [f"  route        batches made on {route.data}, trained on {route.model}" for route in placement.routes]
    return lines
