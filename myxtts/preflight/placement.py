"""Section 2: which device became what, read back from TensorFlow and not from what it was told."""

from collections.abc import Generator, Iterator

import tensorflow as tf

from myxtts.config.schema import Config
from myxtts.errors import PlacementError
from myxtts.placement.audit import require_device
from myxtts.placement.routes import LogicalDevice, Placement
from myxtts.preflight.checks import Check, check, refused
from myxtts.training.setup import configure_devices


def check_placement(config: Config) -> Generator[Check, None, Placement | None]:
    """Sets the devices up as a run does; gives the placement, or None where it cannot be had."""
    asked = describe_asked(config)
    try:
        placement = configure_devices(config)
    except PlacementError as error:
        yield refused("GPUs asked for", asked, error)
        return None
    simulated = ", simulated on the CPU" if placement.simulated else ""
    yield check(True, "GPUs asked for", asked, f"placement {placement.name}{simulated}")
    found = found_devices(placement)
    for device in placement.devices:
        same = next((one for one in found if one.name == device.name), None)
        yield check(
            same == device,
            f"device {device.name}",
            describe(device, placement),
            describe(same, placement) if same else "no such device",
            "This is a defect of the program: report it with this output.",
        )
    roles = [("batches are made", route.data) for route in placement.routes]
    roles += [("the model is trained", route.model) for route in placement.routes]
    for role, name in dict.fromkeys(roles):
        yield from check_alive(role, name, placement)
    policy, soft = tf.config.experimental.get_device_policy(), tf.config.get_soft_device_placement()
    do = "Configure devices by myxtts.placement.devices alone."
    yield check(policy == "silent", "device policy", "silent", policy, do)
    yield check(not soft, "soft placement", "off, so that no operation moves unseen", "on" if soft else "off", do)
    return placement


def describe_asked(config: Config) -> str:
    asked = config.placement
    models = asked.model_gpus or (() if asked.model_gpu is None else (asked.model_gpu,))
    model = f"model on GPU {' '.join(map(str, models))}" if models else "the model on GPU 0, or on the CPU without one"
    return model if asked.data_gpu is None else f"batches on GPU {asked.data_gpu}, {model}"


def found_devices(placement: Placement) -> list[LogicalDevice]:
    """The logical devices that TensorFlow has, in its own numbering: visible GPUs by physical index."""
    if not placement.on_gpu:
        there = {f"/CPU:{number}" for number in range(len(tf.config.list_logical_devices("CPU")))}
        return [device for device in placement.devices if device.name in there]  # simulated: no more can be read back
    visible = tf.config.get_visible_devices("GPU")
    found = []
    for number, physical in enumerate(tf.config.list_physical_devices("GPU")):
        if physical not in visible:
            continue
        for limit_mib in limits_of(physical):
            found.append(LogicalDevice(f"/GPU:{len(found)}", number, limit_mib))
    return found[: len(tf.config.list_logical_devices("GPU"))]


def limits_of(physical) -> list[int | None]:
    """The memory limit in MiB of each part of a GPU; None is one that grows, -1 one that takes all at once."""
    parts = tf.config.get_logical_device_configuration(physical)
    if parts:
        return [part.memory_limit for part in parts]
    return [None if tf.config.experimental.get_memory_growth(physical) else -1]


def describe(device: LogicalDevice, placement: Placement) -> str:
    if device.physical is None:
        return "the CPU"
    memory = {None: "memory grows", -1: "all memory at once"}.get(device.memory_mib, f"at most {device.memory_mib} MiB")
    if placement.simulated:
        return f"simulated GPU {device.physical}" + ("" if device.memory_mib is None else f", {memory} (not applied)")
    return f"GPU {device.physical}, {memory}"


def check_alive(role: str, name: str, placement: Placement) -> Iterator[Check]:
    """A small matrix product on the device: right, and there."""
    with tf.device(name):
        product = tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64]))
    require_device(name, [("a matrix product", product)])
    physical = next(device.physical for device in placement.devices if device.name == name)
    gpu = "the CPU" if physical is None else f"{'simulated ' if placement.simulated else ''}GPU {physical}"
    right = bool(tf.reduce_all(product == 64.0))
    yield check(
        right,
        role,
        "a matrix product comes out right and lies there",
        f"on {name}, {gpu}" if right else f"on {name} it came out wrong",
        "Test the GPU with NVIDIA's own tools.",
    )
