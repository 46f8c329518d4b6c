"""Sections 2 and 4: the devices, configured as in a run and read back from TensorFlow; the copies
between them.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from statistics import median
from typing import Any

import tensorflow as tf

from myxtts.batch import Batch
from myxtts.config.schema import PlacementConfig
from myxtts.errors import PlacementError
from myxtts.placement import devices
from myxtts.placement.audit import require_device
from myxtts.placement.gpu_memory import DriverUnavailable, ask_driver
from myxtts.placement.routes import LogicalDevice, Placement, Route, named_data_gpus, named_gpus
from myxtts.preflight.checks import Check, failed_by, recommended, required
from myxtts.training.setup import OpenRun, Start, open_run

CONFIGURED_ELSEWHERE = "Configure devices only with myxtts.placement.devices."

SIZES_MIB = (1, 16, 64)

# Copies that are timed together, and how often.
COPIES = 8
REPETITIONS = 5


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
    roles = []
    for route in placement.routes:
        roles += [("data device", device) for device in route.data_devices]
    roles += [("model device", route.model) for route in placement.routes]
    for role, name in dict.fromkeys(roles):
        yield check_matrix_product(role, name, placement)
    policy = tf.config.experimental.get_device_policy()
    soft = tf.config.get_soft_device_placement()
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
    # Simulated devices have no other properties that could be read back.
    if not placement.on_gpu:
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
    grows = tf.config.experimental.get_memory_growth(physical)
    return [None] if grows else [-1]


def hardware_name(device: LogicalDevice, placement: Placement) -> str:
    if device.physical is None:
        return "the CPU"
    name = f"GPU {device.physical}"
    return f"simulated {name}" if placement.simulated else name


def describe(device: LogicalDevice, placement: Placement) -> str:
    name = hardware_name(device, placement)
    if device.physical is None or (placement.simulated and device.memory_mib is None):
        return name
    limits = {None: "memory grows", -1: "all memory at once"}
    memory = limits.get(device.memory_mib, f"at most {device.memory_mib} MiB")
    # The CPU takes memory as it needs it, whatever a simulated GPU is limited to.
    return f"{name}, {memory} (not applied)" if placement.simulated else f"{name}, {memory}"


def check_matrix_product(role: str, name: str, placement: Placement) -> Check:
    """Check that a small matrix product is correct and is placed on the device."""
    with tf.device(name):
        product = tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64]))
    require_device(name, [("a matrix product", product)])
    device = next(device for device in placement.devices if device.name == name)
    gpu = hardware_name(device, placement)
    correct = bool(tf.reduce_all(product == 64.0))
    return required(
        correct,
        role,
        "a matrix product is correct and on this device",
        f"{name}, {gpu}" if correct else f"a matrix product on {name}, {gpu}, is wrong",
        "Test the GPU with NVIDIA's tools.",
    )


def check_copies(
    route: Route, batch: Batch, step_s: float, placement: Placement
) -> Iterator[Check]:
    """Check the copies of a route with one data device.

    Args:
        batch: the heaviest, on the model device.
        step_s: seconds of its step.
    """
    if route.data == route.model:
        expected = "no copies: one device makes batches and trains"
        yield required(
            True, "copies", expected, f"{route.data} is the data device and the model device"
        )
        return
    yield check_integrity(route, batch)
    yield check_rate(route.data, route.model, placement.simulated)
    yield check_rate(route.model, route.data, placement.simulated)
    size_bytes = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in batch.values())
    seconds = copy_s(size_bytes, route.data, route.model)
    # A slower copy would be the slowest stage.
    yield recommended(
        seconds < step_s,
        "copy of the heaviest batch",
        f"less time than its step, {1e3 * step_s:,.1f} ms",
        f"{size_bytes / 2**20:,.2f} MiB in {1e3 * seconds:,.2f} ms, {100 * seconds / step_s:.2f} %"
        " of the step",
        "A single device would be faster: give the same index as --data-gpu and --model-gpu.",
    )
    yield check_peer_access(placement, route)


def check_integrity(route: Route, batch: Batch) -> Check:
    """Copy a batch to the data device and back, and compare the bits."""
    changed = []
    for name, tensor in batch.items():
        returned = copy_to(copy_to(tensor, route.data), route.model)
        if returned.numpy().tobytes() != tensor.numpy().tobytes():
            changed.append(name)
    return required(
        not changed,
        "copy integrity",
        "a batch that was copied to the other device and back has the same bits",
        f"{', '.join(changed)} changed" if changed else f"{', '.join(batch)}: all unchanged",
        "Test the GPUs and their link with NVIDIA's tools; do not train on these GPUs.",
    )


def copy_to(tensor: tf.Tensor, device: str) -> tf.Tensor:
    """Copy a tensor to a device; raises PlacementError if the copy is on another device."""
    with tf.device(device):
        copy = tf.identity(tensor)
    require_device(device, [("a copy", copy)])
    return copy


def check_rate(source: str, target: str, simulated: bool) -> Check:
    texts = []
    for size in SIZES_MIB:
        seconds = copy_s(size * 2**20, source, target)
        # Without this case 64 MiB had 1,700 GB/s.
        if simulated:
            texts.append(f"{size} MiB in {1e3 * seconds:.2f} ms")
        else:
            texts.append(f"{size * 2**20 / seconds / 1e9:.1f} GB/s for {size} MiB")
    found = ", ".join(texts)
    if simulated:
        found += (
            ": simulated devices share the memory of the host, so nothing is copied and there is no"
            " rate"
        )
    return required(True, f"copy rate {source} → {target}", "any rate: for information", found)


def copy_s(size_bytes: int, source: str, target: str) -> float:
    """Return the median time of a copy in seconds, from the call until the copy is complete."""
    with tf.device(source):
        tensor = tf.ones([size_bytes // 4])
    devices.synchronize(tensor)
    times_s = []
    for _ in range(REPETITIONS + 1):
        started_s = time.perf_counter()
        for _ in range(COPIES):
            copy = copy_to(tensor, target)
        devices.synchronize(copy)
        times_s.append(time.perf_counter() - started_s)
    # The first ones warm up.
    return median(times_s[1:]) / COPIES


def check_peer_access(placement: Placement, route: Route) -> Check:
    name = "peer access"
    expected = "one GPU reads the memory of the other directly, without the host"
    if not placement.on_gpu:
        return required(
            True, name, "does not apply: the devices share the memory of the host", "no GPU is used"
        )
    physical = {device.name: device.physical for device in placement.devices}
    data = physical[route.data]
    model = physical[route.model]
    # Both are GPUs.
    assert data is not None and model is not None
    if data == model:
        return required(True, name, expected, f"both devices are parts of GPU {data}")
    has_access, details = peer_access(data, model)
    to_do = "Training works at the copy rates above; NVLink or another slot may be faster."
    return recommended(bool(has_access), name, expected, details, to_do)


def peer_access(first: int, second: int) -> tuple[bool | None, str]:
    """Return whether two GPUs, in TensorFlow's numbering, can read each other's memory, and this in
    words; None if it is unknown.
    """
    handles = []

    def ask(nvml: Any, handle: Any) -> int | None:
        handles.append(handle)
        if len(handles) == 1:
            return None
        return nvml.nvmlDeviceGetP2PStatus(*handles, nvml.NVML_P2P_CAPS_INDEX_READ)

    try:
        _, status = ask_driver((first, second), ask)
    except DriverUnavailable as reason:
        return None, f"unknown: {reason}"
    # NVML_P2P_STATUS_OK; the other numbers say which part lacks it.
    if status == 0:
        return True, "yes"
    return False, f"no (status {status} of the driver)"
