"""How busy GPUs are while something runs, and their power, by the driver (NVML). No TensorFlow."""

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from myxtts.placement.gpu_memory import ask_driver

# The driver averages over the last sixth of a second to second, by GPU.
PERIOD_S, READINGS_PER_S = 0.2, 5


class GpuUsage:
    """Reads GPUs, by TensorFlow's indices, while scopes last; `reason` tells why it cannot."""

    def __init__(self, gpus: Sequence[int]):
        self._gpus = gpus
        self._handles: list[tuple[Any, ...]] = []
        self._seconds: list[np.ndarray] = []  # float [gpus, figures]
        self.reason = "" if gpus else "the model is not on a GPU"

    def __enter__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="myxtts-gpu-usage", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        readings: list[list[list[float]]] = []
        try:
            # Once, since it may start a process to find them.
            self._handles = self._handles or ask_driver(self._gpus, lambda *asked: asked)
            while not (readings and self._ended.is_set()):
                self._ended.wait(PERIOD_S)
                readings.append([_read(nvml, handle) for nvml, handle in self._handles])
        except Exception as error:
            # Whatever the driver reports, the pass goes on.
            self.reason = self.reason or str(error)
            return
        # Whole seconds, or what there is of a shorter scope.
        seconds = max(len(readings) // READINGS_PER_S, 1)
        for second in np.array_split(readings[: seconds * READINGS_PER_S], seconds):
            self._seconds.append(second.mean(axis=0))

    def figures(self) -> dict[int, dict[str, float]]:
        """Return by GPU `utilisation` (the fraction of time in which it computed), used
        `memory_mib`, `watts` (0 if unknown), and `least_utilisation`, in the least busy second.
        """
        if self.reason:
            return {}
        names = ("utilisation", "memory_mib", "watts", "least_utilisation")
        lowest = np.min(self._seconds, axis=0)[:, :1]
        rows = np.hstack([np.mean(self._seconds, axis=0), lowest]).tolist()
        figures = (dict(zip(names, row, strict=True)) for row in rows)
        return dict(zip(self._gpus, figures, strict=True))


def _read(nvml: Any, handle: Any) -> list[float]:
    """Return utilisation, used MiB and watts of a GPU."""
    utilisation = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    memory_mib = nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20
    watts = 0.0
    with suppress(nvml.NVMLError):
        watts = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
    return [utilisation, memory_mib, watts]
