"""Section 2: the devices, configured as in a run and then read back from TensorFlow."""

from collections.abc import Generator
from contextlib import ExitStack

import tensorflow as tf

from myxtts.config.schema import PlacementConfig
from myxtts.errors import PlacementError
from myxtts.placement.audit import require_device
from myxtts.placement.routes import LogicalDevice, Placement, named_data_gpus, named_gpus
from myxtts.preflight.checks import Check, failed_by, required
from myxtts.training.setup import OpenRun, Start, open_run

CONFIGURED_ELSEWHERE = "Configure devices only with myxtts.placement.devices."


def check_placement(
    start: Start, resources: ExitStack, advice: str = ""
) -> Generator[Check, None, OpenRun | None]:
    """Configure the devices as a run does; returns the open run, or None if it is impossible.

    Args:
        resources: closes the run.
        advice: further sentence on an impossible placement.
    """
    expected = describe_request(start.config.placement)
    try:
        run = resources.enter_context(open_run(start))
    except PlacementError as error:
        yield failed_by(PlacementError(f"{error}{advice}"), "requested devices", expected)
        return None
    placement = run.placement
    simulated = ", simulated on the CPU" if placement.simulated else ""
    yield required(True, "requested devices", expected, f"placement {placement.name}{simulated}")
    existing = {device.name: device for device in existing_devices(placement)}
    for device in placement.devices:
        match = existing.get(device.name)
        yield required(
            match == device,
            f"device {device.name}",
            describe(device, placement),
            describe(match, placement) if match else "no such device",
            "This is a defect of the program: report it with this output.",
        )
    roles = [("data device", device) for route in placement.routes for device in route.data_devices]
    roles += [("model device", route.model) for route in placement.routes]
    for role, name in dict.fromkeys(roles):
        yield check_matrix_product(role, name, placement)
    policy, soft = tf.config.experimental.get_device_policy(), tf.config.get_soft_device_placement()
    yield required(policy == "silent", "device policy", "silent", policy, CONFIGURED_ELSEWHERE)
    yield required(
        not soft,
        "soft placement",
        "off, so that TensorFlow moves no operation to another device",
        "on" if soft else "off",
        CONFIGURED_ELSEWHERE,
    )
    return run


def describe_request(placement: PlacementConfig) -> str:
    data = named_data_gpus(placement)
    gpus = named_gpus(placement)[len(data) :]
    model = (
        f"model on GPU {' '.join(map(str, gpus))}"
        if gpus
        else "model on GPU 0, or on the CPU without a GPU"
    )
    return f"batches on GPU {' '.join(map(str, data))}, {model}" if data else model


def existing_devices(placement: Placement) -> list[LogicalDevice]:
    """Return TensorFlow's logical devices in its own numbering: visible GPUs by physical index."""
    if not placement.on_gpu:  # simulated devices have no other properties that could be read back
        names = {f"/CPU:{number}" for number in range(len(tf.config.list_logical_devices("CPU")))}
        return [device for device in placement.devices if device.name in names]
    visible = tf.config.get_visible_devices("GPU")
    existing: list[LogicalDevice] = []
    for number, physical in enumerate(tf.config.list_physical_devices("GPU")):
        if physical in visible:
            for limit_mib in memory_limits(physical):
                existing.append(LogicalDevice(f"/GPU:{len(existing)}", number, limit_mib))
    return existing[: len(tf.config.list_logical_devices("GPU"))]


def memory_limits(physical) -> list[int | None]:
    """Return the memory limit in MiB of each part of a GPU; None means memory growth, -1 all memory
    at once.
    """
    parts = tf.config.get_logical_device_configuration(physical)
    if parts:
        return [part.memory_limit for part in parts]
    return [None if tf.config.experimental.get_memory_growth(physical) else -1]


def describe(device: LogicalDevice, placement: Placement) -> str:
    if device.physical is None:
        return "the CPU"
    memory = {None: "memory grows", -1: "all memory at once"}.get(
        device.memory_mib, f"at most {device.memory_mib} MiB"
    )
    if placement.simulated:
        return f"simulated GPU {device.physical}" + (
            "" if device.memory_mib is None else f", {memory} (not applied)"
        )
    return f"GPU {device.physical}, {memory}"


def check_matrix_product(role: str, name: str, placement: Placement) -> Check:
    """Check that a small matrix product is correct and is placed on the device."""
    with tf.device(name):
        product = tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64]))
    require_device(name, [("a matrix product", product)])
    physical = next(device.physical for device in placement.devices if device.name == name)
    gpu = (
        "the CPU"
        if physical is None
        else f"{'simulated ' if placement.simulated else ''}GPU {physical}"
    )
    correct = bool(tf.reduce_all(product == 64.0))
    return required(
        correct,
        role,
        "a matrix product is correct and on this device",
        f"{name}, {gpu}" if correct else f"a matrix product on {name}, {gpu}, is wrong",
        "Test the GPU with NVIDIA's tools.",
    )
