"""Section 4: what is copied between the two devices of a route: whole, how fast, and by which way."""

import time
from collections.abc import Iterator
from statistics import median

import numpy as np
import tensorflow as tf

from myxtts.placement import devices
from myxtts.placement.audit import require_device
from myxtts.placement.routes import Placement, Route
from myxtts.preflight import nvidia
from myxtts.preflight.checks import Check, check, remark
from myxtts.preflight.model import Bench

DTYPES = (tf.int16, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.bool)
ELEMENTS = (0, 1, 4095, 1_000_003)
SIZES_MIB = (1, 16, 64)
COPIES = 8
ROUNDS = 5


def check_transfer(bench: Bench, placement: Placement) -> Iterator[Check]:
    for route, batch in zip(placement.routes, bench.batches, strict=True):
        if route.data == route.model:
            yield Check("holds", "copies", "none: one device makes batches and trains", f"{route.data} is both")
            continue
        yield check_integrity(route)
        yield check_rate(route.data, route.model, placement.simulated)
        yield check_rate(route.model, route.data, placement.simulated)
        yield check_share(route, batch, bench.step_s)
        yield check_peer_access(placement, route)


def check_integrity(route: Route) -> Check:
    """Random bytes of several types and sizes, to the model device and back."""
    random = np.random.default_rng(0)
    broken = []
    for dtype in DTYPES:
        for elements in ELEMENTS:
            sent = random_values(random, dtype, elements)
            with tf.device(route.data):
                there = tf.constant(sent, dtype)
            back = copied(copied(there, route.model), route.data)
            if back.numpy().tobytes() != sent.tobytes():
                broken.append(f"{elements} x {dtype.name}")
    tried = f"{len(DTYPES)} types of {', '.join(f'{n:,}' for n in ELEMENTS)} elements"
    return check(
        not broken,
        "integrity",
        "the same bits after a way there and back",
        f"{tried}: {', '.join(broken) + ' came back changed' if broken else 'all the same'}",
        "Test the GPUs and their link with NVIDIA's own tools; do not train on them.",
    )


def random_values(random: np.random.Generator, dtype: tf.DType, elements: int) -> np.ndarray:
    """Any bits that the type can have; NaN among them."""
    if dtype == tf.bool:
        return random.integers(0, 2, elements).astype(bool)
    return np.frombuffer(random.bytes(elements * dtype.size), dtype.as_numpy_dtype)


def copied(tensor: tf.Tensor, device: str) -> tf.Tensor:
    """Raises PlacementError where the copy is elsewhere."""
    with tf.device(device):
        copy = tf.identity(tensor)
    require_device(device, [("a copy", copy)])
    return copy


def check_rate(source: str, target: str, simulated: bool) -> Check:
    seconds = {size: copy_s(size * 2**20, source, target) for size in SIZES_MIB}
    if simulated:  # 1,700 GB/s were "measured" here for 64 MiB
        found = ", ".join(f"{size} MiB in {1e3 * s:.2f} ms" for size, s in seconds.items())
        found += ": simulated devices share the host's memory, so this is no copy and has no rate"
    else:
        found = ", ".join(f"{size * 2**20 / s / 1e9:.1f} GB/s by {size} MiB" for size, s in seconds.items())
    return Check("holds", f"rate {source} → {target}", "measured, whatever it is", found)


def copy_s(size_bytes: int, source: str, target: str) -> float:
    """Seconds of one copy to the target, the median of some rounds of COPIES, each until all of them lie there."""
    with tf.device(source):
        tensor = tf.ones([size_bytes // 4])
    devices.synchronize(tensor)
    rounds_s = []
    for _ in range(ROUNDS + 1):
        started_s = time.perf_counter()
        for _ in range(COPIES):
            copy = copied(tensor, target)
        devices.synchronize(copy)
        rounds_s.append(time.perf_counter() - started_s)
    return median(rounds_s[1:]) / COPIES


def check_share(route: Route, batch: dict[str, tf.Tensor], step_s: float) -> Check:
    """The heaviest batch's copy against its step: what a copy may take without becoming the slowest stage."""
    size_bytes = sum(tensor.shape.num_elements() * tensor.dtype.size for tensor in batch.values())
    seconds = copy_s(size_bytes, route.data, route.model)
    return remark(
        seconds < step_s,
        "heaviest batch",
        f"copied in less time than its step takes, {1e3 * step_s:,.1f} ms",
        f"{size_bytes / 2**20:,.2f} MiB in {1e3 * seconds:,.2f} ms, {100 * seconds / step_s:.2f} % of it",
        "One device for both would be faster: the same index as --data-gpu and --model-gpu.",
    )


def check_peer_access(placement: Placement, route: Route) -> Check:
    name, expected = "peer access", "one GPU reads the other's memory, without a way through the host"
    if not placement.on_gpu:
        return Check("holds", name, "does not apply: the devices share the host's memory", "no GPU is used")
    gpu_of = {device.name: device.physical for device in placement.devices}
    data, model = gpu_of[route.data], gpu_of[route.model]
    if data == model:
        return Check("holds", name, expected, f"both devices are parts of GPU {data}")
    there, told = nvidia.peer_access(data, model)
    do = "The rates above are what you get; NVLink or another slot may be faster."
    return remark(bool(there), name, expected, told if there is None else f"{'yes' if there else 'no'}, {told}", do)
