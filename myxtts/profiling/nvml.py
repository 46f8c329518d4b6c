"""What NVIDIA's driver says of the GPUs while something runs. Without a GPU or its library, why it says nothing."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PERIOD_S = 0.1  # the driver's own figure is of the last 0.17 to 1 s, by the GPU


@dataclass
class GpuUsage:
    """Samples of one GPU: share of the time in which a kernel ran, and memory in use by all programs."""

    utilisation: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        return {
            "utilisation": float(np.mean(self.utilisation)),
            "utilisation_variation": float(np.std(self.utilisation) / max(np.mean(self.utilisation), 1e-9)),
            "memory_mib": max(self.memory_mib),
        }


class GpuSampler:
    """The usage of some GPUs, sampled while `sampling` is entered.

    Args:
        gpus: physical indices, as TensorFlow numbers them.

    Attributes:
        usage: by GPU; only those that were sampled.
        reason: why nothing can be sampled; empty where it can.
    """

    def __init__(self, gpus: Sequence[int]):
        self.usage: dict[int, GpuUsage] = {}
        self.reason = "" if gpus else "the model is on no GPU"
        self._handles: dict[int, Any] = {}
        if not gpus:
            return
        try:
            import pynvml  # only where there is a GPU
        except ImportError:
            self.reason = "nvidia-ml-py is not installed: pip install nvidia-ml-py"
            return
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handles = {gpu: _handle(pynvml, gpu) for gpu in gpus}
            self._take_samples()  # parts of a GPU (MIG) have no utilisation, and say so here
        except pynvml.NVMLError as error:
            self._handles = {}
            self.reason = f"the driver refused: {error}"
        self.usage = {}

    @contextmanager
    def sampling(self) -> Iterator[None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._sample, args=(stop,), name="myxtts-nvml", daemon=True)
        if self._handles:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            if self._handles:
                thread.join()

    def _sample(self, stop: threading.Event) -> None:
        while not stop.wait(PERIOD_S):
            self._take_samples()

    def _take_samples(self) -> None:
        for gpu, handle in self._handles.items():
            usage = self.usage.setdefault(gpu, GpuUsage())
            usage.utilisation.append(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)
            usage.memory_mib.append(self._nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20)


def _handle(nvml: Any, gpu: int) -> Any:
    """The driver's handle of a GPU that TensorFlow numbers so, which counts only what CUDA_VISIBLE_DEVICES names."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    name = visible[gpu].strip() if gpu < len(visible) and visible[gpu].strip() else str(gpu)
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)
