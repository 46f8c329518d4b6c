"""Sections 2 and 4: the devices, configured as in a run and read back; the copies between them."""

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from statistics import median

import tensorflow as tf

from myxtts.devicefeed.audit import require_device
from myxtts.devicefeed.contract import Batch
from myxtts.devicefeed.devices import synchronize
from myxtts.devicefeed.errors import PlacementError
from myxtts.devicefeed.routes import LogicalDevice, Placement, Route
from myxtts.placement.settings import named_data_gpus, named_gpus
from myxtts.run.setup import OpenRun, open_run
from myxtts.run.start import Start
from myxtts.trial.preflight.checks import Check, failed_by, recommended, required

COPIES = 8
REPETITIONS = 5


def check_placement(
    start: Start, resources: ExitStack, advice: str = ""
) -> Generator[Check, None, OpenRun | None]:
    """Configure the devices as a run does; returns the open run, or None if it is impossible.

    `resources` closes the run; `advice` ends the message about an impossible placement.
    """
    data = named_data_gpus(start.config.placement)
    models = named_gpus(start.config.placement)[len(data) :] or (0,)
    expected = f"model on GPU {' '.join(map(str, models))}"
    if data:
        expected = f"batches on GPU {' '.join(map(str, data))}, {expected}"
    try:
        run = resources.enter_context(open_run(start))
    except PlacementError as error:
        yield failed_by(PlacementError(f"{error}{advice}"), "requested devices", expected)
        return None
    placement = run.placement
    found = f"placement {placement.name}"
    if placement.simulated:
        found += ", simulated on the CPU"
    yield required(True, "requested devices", expected, found)
    # What TensorFlow says is compared with the plan, instead of trusting that it was configured.
    existing = existing_devices(placement)
    for device in placement.devices:
        yield check_device(device, placement, existing)
    policy = tf.config.experimental.get_device_policy()
    soft = tf.config.get_soft_device_placement()
    yield required(
        policy == "silent" and not soft,
        "device policy",
        "silent; soft placement is False, so that TensorFlow moves no operation",
        f"{policy}; soft placement is {soft}",
        "Configure devices only with myxtts.placement.devices.",
    )
    return run


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
            parts = tf.config.get_logical_device_configuration(physical) or ()
            # None grows; without that or a limit, TensorFlow takes all memory at once.
            grows = tf.config.experimental.get_memory_growth(physical)
            unlimited = None if grows else -1
            for limit_mib in [part.memory_limit for part in parts] or [unlimited]:
                existing.append(LogicalDevice(f"/GPU:{len(existing)}", number, limit_mib))
    return existing[: len(tf.config.list_logical_devices("GPU"))]


def check_device(
    device: LogicalDevice, placement: Placement, existing: Sequence[LogicalDevice]
) -> Check:
    """Check that a device is as planned, and that a small matrix product is correct and on it."""
    name = f"device {device.name}"
    expected = f"GPU {device.physical}, memory grows"
    if device.memory_mib is not None:
        expected = f"GPU {device.physical}, at most {device.memory_mib} MiB"
    # The CPU takes memory as it needs it, whatever a simulated GPU is limited to.
    if not placement.on_gpu:
        expected = "the CPU" if device.physical is None else f"simulated GPU {device.physical}"
    expected += "; a matrix product is correct there"
    if device not in existing:
        to_do = "This is a defect of the program: report it with this output."
        return required(False, name, expected, f"TensorFlow has {existing}", to_do)
    with tf.device(device.name):
        product = tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64]))
    require_device(device.name, [("a matrix product", product)])
    is_correct = bool(tf.reduce_all(product == 64.0))
    found = "as expected" if is_correct else "the product is wrong"
    return required(is_correct, name, expected, found, "Test the GPU with NVIDIA's tools.")


def check_copies(route: Route, batch: Batch, step_s: float) -> Iterator[Check]:
    """Check the copies of a route with one data device.

    `batch` is the heaviest one, on the model device, and `step_s` are the seconds of its step.
    """
    if route.data == route.model:
        expected = "no copies: one device makes batches and trains"
        yield required(True, "copies", expected, f"{route.data} does both")
        return
    yield check_integrity(route, batch)
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


def copy_s(size_bytes: int, source: str, target: str) -> float:
    """Return the median time of a copy in seconds, from the call until the copy is complete."""
    with tf.device(source):
        tensor = tf.ones([size_bytes // 4])
    synchronize(tensor)
    times_s = []
    for _ in range(REPETITIONS + 1):
        started_s = time.perf_counter()
        for _ in range(COPIES):
            copy = copy_to(tensor, target)
        synchronize(copy)
        times_s.append(time.perf_counter() - started_s)
    # The first ones warm up.
    return median(times_s[1:]) / COPIES
