"""Utilisation and memory of NVIDIA GPUs from the driver (NVML), or the reason why there are
none.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from myxtts.placement.gpu_memory import DriverUnavailable, ask_driver

PERIOD_S = 0.1  # the driver averages its own figure over the last 0.17 to 1 s, depending on the GPU


@dataclass
class GpuUsage:
    """Samples of one GPU: fraction of the time in which a kernel ran, and memory used by all
    programs.
    """

    utilisation: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)

    def to_json(self) -> dict[str, float]:
        mean = float(np.mean(self.utilisation))
        return {
            "utilisation": mean,
            "utilisation_variation": float(np.std(self.utilisation)) / max(mean, 1e-9),
            "memory_mib": max(self.memory_mib),
        }


class GpuSampler:
    """Samples the usage of some GPUs inside the context `sampling`.

    Args:
        gpus: physical indices, as TensorFlow numbers them.

    Attributes:
        usage: by GPU; only GPUs with samples.
        reason: why nothing can be sampled; otherwise empty.
    """

    def __init__(self, gpus: Sequence[int]):
        self.usage: dict[int, GpuUsage] = {}
        self.reason = "" if gpus else "the model is not on a GPU"
        self._readers: dict[int, Callable[[], tuple[float, float]]] = {}
        try:
            self._readers = dict(zip(gpus, ask_driver(gpus, _reader), strict=True)) if gpus else {}
        except DriverUnavailable as error:
            self.reason = str(error)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(
            target=self._sample, args=(stop,), name="myxtts-nvml", daemon=True
        )
        if self._readers:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            if thread.ident is not None:
                thread.join()

    def _sample(self, stop: threading.Event) -> None:
        try:
            while not stop.wait(PERIOD_S):
                self._take_samples()
        except DriverUnavailable as error:
            self.usage.clear()  # the figures of a part of the time are not those of all of it
            self._readers, self.reason = {}, str(error)

    def _take_samples(self) -> None:
        for gpu, read in self._readers.items():
            utilisation, memory_mib = read()
            usage = self.usage.setdefault(gpu, GpuUsage())
            usage.utilisation.append(utilisation)
            usage.memory_mib.append(memory_mib)


def _reader(nvml: Any, handle: Any) -> Callable[[], tuple[float, float]]:
    """Return a function that reads utilisation and used memory in MiB of a GPU, after one try.

    Raises:
        DriverUnavailable: for parts of a GPU (MIG), which have no utilisation; from the function,
            at any later time.
    """

    def read() -> tuple[float, float]:
        try:
            utilisation = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            return utilisation, nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20
        except nvml.NVMLError as error:
            raise DriverUnavailable(f"the driver reports: {error}") from error

    read()
    return read
