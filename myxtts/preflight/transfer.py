"""Section 4: integrity, rate and path of copies between the devices of a route."""

import time
from collections.abc import Iterator
from statistics import median

import numpy as np
import tensorflow as tf

from myxtts.placement import devices
from myxtts.placement.audit import require_device
from myxtts.placement.routes import Placement, Route
from myxtts.preflight import nvidia
from myxtts.preflight.checks import Check, recommended, required
from myxtts.preflight.model import Trial

DTYPES = (tf.int16, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.bool)
ELEMENTS = (0, 1, 4095, 1_000_003)
SIZES_MIB = (1, 16, 64)
COPIES = 8  # timed together
REPETITIONS = 5


def check_transfer(trial: Trial, placement: Placement) -> Iterator[Check]:
    for route, batch in zip(placement.routes, trial.batches, strict=True):
        for data in route.data_devices:
            yield from check_copies(Route(data, route.model), batch, trial.step_s, placement)


def check_copies(
    route: Route, batch: dict[str, tf.Tensor], step_s: float, placement: Placement
) -> Iterator[Check]:
    """Check the copies of a route with one data device."""
    if route.data == route.model:
        expected = "no copies: one device makes batches and trains"
        yield required(
            True, "copies", expected, f"{route.data} is the data device and the model device"
        )
        return
    yield check_integrity(route)
    yield check_rate(route.data, route.model, placement.simulated)
    yield check_rate(route.model, route.data, placement.simulated)
    yield check_batch_copy(route, batch, step_s)
    yield check_peer_access(placement, route)


def check_integrity(route: Route) -> Check:
    """Copy random bytes of several types and sizes to the model device and back, and compare."""
    random = np.random.default_rng(0)
    changed = []
    for dtype in DTYPES:
        for elements in ELEMENTS:
            sent = random_values(random, dtype, elements)
            with tf.device(route.data):
                tensor = tf.constant(sent, dtype)
            received = copy_to(copy_to(tensor, route.model), route.data)
            if received.numpy().tobytes() != sent.tobytes():
                changed.append(f"{elements} x {dtype.name}")
    tried = f"{len(DTYPES)} types with {', '.join(f'{n:,}' for n in ELEMENTS)} elements"
    return required(
        not changed,
        "copy integrity",
        "a copy to the model device and back has the same bits",
        f"{tried}: {', '.join(changed) + ' changed' if changed else 'all unchanged'}",
        "Test the GPUs and their link with NVIDIA's tools; do not train on these GPUs.",
    )


def random_values(random: np.random.Generator, dtype: tf.DType, elements: int) -> np.ndarray:
    """Return values with random bits, which include NaN."""
    if dtype == tf.bool:
        return random.integers(0, 2, elements).astype(bool)
    return np.frombuffer(random.bytes(elements * dtype.size), dtype.as_numpy_dtype)


def copy_to(tensor: tf.Tensor, device: str) -> tf.Tensor:
    """Copy a tensor to a device; raises PlacementError if the copy is on another device."""
    with tf.device(device):
        copy = tf.identity(tensor)
    require_device(device, [("a copy", copy)])
    return copy


def check_rate(source: str, target: str, simulated: bool) -> Check:
    seconds = {size: copy_s(size * 2**20, source, target) for size in SIZES_MIB}
    if simulated:  # without this case 64 MiB had 1,700 GB/s
        found = ", ".join(f"{size} MiB in {1e3 * s:.2f} ms" for size, s in seconds.items())
        found += (
            ": simulated devices share the memory of the host, so nothing is copied and there is no"
            " rate"
        )
    else:
        found = ", ".join(
            f"{size * 2**20 / s / 1e9:.1f} GB/s for {size} MiB" for size, s in seconds.items()
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
    return median(times_s[1:]) / COPIES


def check_batch_copy(route: Route, batch: dict[str, tf.Tensor], step_s: float) -> Check:
    """Compare the copy of the heaviest batch with its step: a slower copy would be the slowest
    stage.
    """
    size_bytes = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in batch.values())
    seconds = copy_s(size_bytes, route.data, route.model)
    return recommended(
        seconds < step_s,
        "copy of the heaviest batch",
        f"less time than its step, {1e3 * step_s:,.1f} ms",
        f"{size_bytes / 2**20:,.2f} MiB in {1e3 * seconds:,.2f} ms, {100 * seconds / step_s:.2f} %"
        " of the step",
        "A single device would be faster: give the same index as --data-gpu and --model-gpu.",
    )


def check_peer_access(placement: Placement, route: Route) -> Check:
    name, expected = (
        "peer access",
        "one GPU reads the memory of the other directly, without the host",
    )
    if not placement.on_gpu:
        return required(
            True, name, "does not apply: the devices share the memory of the host", "no GPU is used"
        )
    physical = {device.name: device.physical for device in placement.devices}
    data, model = physical[route.data], physical[route.model]
    assert data is not None and model is not None  # both are GPUs
    if data == model:
        return required(True, name, expected, f"both devices are parts of GPU {data}")
    has_access, details = nvidia.peer_access(data, model)
    found = details if has_access is None else f"{'yes' if has_access else 'no'}, {details}"
    to_do = "Training works at the copy rates above; NVLink or another slot may be faster."
    return recommended(bool(has_access), name, expected, found, to_do)
