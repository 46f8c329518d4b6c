"""Configures TensorFlow's devices, once, before TensorFlow starts.

Visible devices, memory growth and memory limits cannot change after the first tensor.
"""

import logging

import tensorflow as tf

from myxtts.config.schema import PlacementConfig
from myxtts.errors import PlacementError
from myxtts.placement.routes import Placement, plan_routes

log = logging.getLogger(__name__)


def gpu_count() -> int:
    """Return how many physical GPUs TensorFlow sees, without initialising them."""
    return len(tf.config.list_physical_devices("GPU"))


def configure(placement: Placement, soft_placement: bool = False) -> None:
    """Make only the devices of the placement visible, with memory growth or limits.

    Args:
        placement: as `plan_routes` returns it.
        soft_placement: let TensorFlow move operations that a device cannot run. Otherwise such an operation, or a
            device that does not exist, is an error.

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
            f"the devices of this run ({placement.name}) cannot be configured: TensorFlow has already started: "
            f"{error}. Configure devices before the first tensor; restart the process or notebook kernel."
        ) from error
    tf.config.experimental.set_device_policy("silent")
    tf.config.set_soft_device_placement(soft_placement)
    for line in describe(placement):
        log.info("%s", line)


def configure_default() -> Placement:
    """Configure the default placement, GPU 0 or else the CPU, and return it."""
    placement = plan_routes(PlacementConfig(), gpu_count())
    configure(placement)
    return placement


def _configure_gpus(placement: Placement) -> None:
    physical = tf.config.list_physical_devices("GPU")
    used = sorted({device.physical for device in placement.devices if device.physical is not None})
    tf.config.set_visible_devices([physical[i] for i in used], "GPU")
    for i in used:
        limits = [device.memory_mib for device in placement.devices if device.physical == i]
        if limits == [None]:
            tf.config.experimental.set_memory_growth(physical[i], True)
        else:
            logical = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits]
            tf.config.set_logical_device_configuration(physical[i], logical)


def _configure_cpu(placement: Placement) -> None:
    """Use the CPU, split into as many logical devices as there are simulated GPUs; hide all GPUs."""
    tf.config.set_visible_devices([], "GPU")
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration() for _ in placement.devices]
    tf.config.set_logical_device_configuration(cpu, logical)


def synchronize(tensor: tf.Tensor) -> None:
    """Wait until the tensor's device has computed it and all earlier work, by reading one element.

    Does not work for int32, which TensorFlow keeps in host memory, ready before the GPU has done anything.
    """
    with tf.device(tensor.device):
        tf.reshape(tensor, [-1])[:1].numpy()


def describe(placement: Placement) -> list[str]:
    """Describe the placement for the log: which GPU is which device, limits, routes."""
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
