"""What the devices did while some steps ran, from a trace of TensorFlow's profiler."""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

GPU_PLANE, HOST_PLANE = "/device:GPU", "/host:CPU"
STREAM = "Stream"  # begins the name of each line of a GPU that has kernels and copies
COPIES = {
    "MemcpyD2H": "to_host",
    "MemcpyH2D": "to_device",
    "MemcpyD2D": "on_device",
    "MemcpyP2P": "between_devices",
}
# Ends the name of XLA's event for each function that it compiles.
COMPILATION = "Compiler::RunBackend"


class Activity(NamedTuple):
    """Mean figures of a call.

    Attributes:
        kernels: kernels that ran on GPUs; None if the trace has no GPU.
        copies: by kind, see COPIES.
        busy: fraction of the time in which kernels ran; above 1 if several ran at the same time.
        compilations: functions that XLA compiled, in all calls.
    """

    kernels: float | None
    copies: dict[str, float]
    busy: float | None
    compilations: int


NOTHING = Activity(None, {}, None, 0)


def trace(call: Callable[[], object], calls: int) -> Activity:
    """Trace some calls, each of which has to wait for its device."""
    with tempfile.TemporaryDirectory(prefix="myxtts-trace-") as folder:
        tf.profiler.experimental.start(folder)
        began_s = time.perf_counter()
        try:
            for _ in range(calls):
                call()
        finally:
            seconds = time.perf_counter() - began_s
            tf.profiler.experimental.stop()
        return activity(read_planes(Path(folder)), calls, seconds)


def read_planes(folder: Path) -> Iterator[Any]:
    for file in folder.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace()
        space.ParseFromString(file.read_bytes())
        yield from space.planes


def activity(planes: Iterable[Any], calls: int, seconds: float) -> Activity:
    """Count what the planes of a trace show."""
    kernels, busy_s, compilations, has_gpu = 0, 0.0, 0, False
    copies = dict.fromkeys(COPIES.values(), 0)
    for plane in planes:
        names = {number: item.name for number, item in plane.event_metadata.items()}
        if plane.name.startswith(HOST_PLANE):
            compilations += sum(
                names[e.metadata_id].endswith(COMPILATION)
                for line in plane.lines
                for e in line.events
            )
        if not plane.name.startswith(GPU_PLANE):
            continue
        has_gpu = True
        for event in (
            event for line in plane.lines if line.name.startswith(STREAM) for event in line.events
        ):
            name = names[event.metadata_id]
            if name in COPIES:
                copies[COPIES[name]] += 1
            elif not name.startswith("Mem"):  # Memset
                kernels += 1
                busy_s += event.duration_ps / 1e12
    if not has_gpu:
        return Activity(None, {}, None, compilations)
    means = {name: count / calls for name, count in copies.items()}
    return Activity(kernels / calls, means, busy_s / seconds, compilations)
