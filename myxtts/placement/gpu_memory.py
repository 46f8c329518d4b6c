"""Memory of GPUs as NVIDIA's driver reports it (NVML), and limits that fit. No TensorFlow."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from myxtts.base.processes import visible_gpus
from myxtts.devicefeed.errors import PlacementError
from myxtts.devicefeed.routes import Placement

# What TensorFlow 2.21 leaves to CUDA, cuBLAS, cuDNN and NCCL if it has no limit, by the largest
# major compute capability (MinSystemMemory in gpu_device.cc). With limits it leaves nothing.
SMALL_GPU_MIB, SMALL_GPU_RESERVE_MIB = 2048, 225
RESERVES_MIB = ((6, 500), (7, 1050), (8, 1536))
LARGEST_RESERVE_MIB = 1800
# An estimate: cuBLAS takes up to 32 MiB for each handle and stream (cublasSetWorkspace).
SECOND_DEVICE_MIB = 64

Answer = TypeVar("Answer")


class DriverUnavailable(Exception):
    """The driver cannot be asked; the message is the reason."""


@dataclass(frozen=True)
class GpuMemory:
    """Memory of a physical GPU."""

    name: str
    total_mib: int
    free_mib: int
    capability: int  # major compute capability
    processes: tuple[int, ...] = ()  # IDs of all others that compute on the GPU

    def reserve_mib(self, logical_devices: int) -> int:
        """Return what CUDA and its libraries need in addition to tensors."""
        if self.total_mib < SMALL_GPU_MIB:
            reserve_mib = SMALL_GPU_RESERVE_MIB
        else:
            fitting = (mib for capability, mib in RESERVES_MIB if self.capability <= capability)
            reserve_mib = next(fitting, LARGEST_RESERVE_MIB)
        return reserve_mib + SECOND_DEVICE_MIB * (logical_devices - 1)

    def describe(self) -> str:
        """Return name, total and free memory, and the processes that hold memory."""
        memory = f"{self.name} has {self.total_mib:,} MiB, of which {self.free_mib:,} MiB are free"
        if self.processes:
            memory += f"; processes that hold memory: {', '.join(map(str, self.processes))}"
        return memory


def limits_of(placement: Placement) -> dict[int, list[int]]:
    """Return the memory limits in MiB of the logical devices, by physical GPU."""
    limits: dict[int, list[int]] = {}
    for device in placement.devices:
        if device.name.startswith("/GPU") and device.memory_mib is not None:
            assert device.physical is not None
            limits.setdefault(device.physical, []).append(device.memory_mib)
    return limits


def check_limits(limits: dict[int, list[int]], memory: dict[int, GpuMemory]) -> None:
    """Raise PlacementError if limits, as `limits_of` returns them, exceed the free memory."""
    for gpu, sizes in limits.items():
        found = memory[gpu]
        reserve_mib = found.reserve_mib(len(sizes))
        if sum(sizes) + reserve_mib > found.free_mib:
            terms = " + ".join(f"{mib:,}" for mib in (*sizes, reserve_mib))
            raise PlacementError(
                f"memory limits were requested on GPU {gpu} which take {terms} ="
                f" {sum(sizes) + reserve_mib:,} MiB with what CUDA and its libraries need, but"
                f" {found.describe()}. Lower --data-gpu-memory and --model-gpu-memory, end other"
                " processes on the GPU, or leave out the limits and --enable-memory-isolation."
            )


def read_memory(gpus: Sequence[int]) -> dict[int, GpuMemory]:
    """Return the memory of GPUs, by their indices in TensorFlow; see `ask_driver` for errors."""
    return dict(zip(gpus, ask_driver(gpus, _memory_of), strict=True))


def ask_driver(gpus: Sequence[int], question: Callable[[Any, Any], Answer]) -> list[Answer]:
    """Return the answer to a question about each GPU, which gets NVML and its handle of the GPU.

    Raises DriverUnavailable if there is no NVML, or it does not know a GPU.
    """
    try:
        import pynvml  # only where there is a GPU
    except ImportError as error:
        raise DriverUnavailable(
            "nvidia-ml-py is not installed: pip install nvidia-ml-py"
        ) from error
    try:
        pynvml.nvmlInit()
        return [question(pynvml, gpu_handle(pynvml, gpu)) for gpu in gpus]
    except (pynvml.NVMLError, LookupError) as error:
        raise DriverUnavailable(f"the driver reports: {error}") from error


def _memory_of(nvml: Any, handle: Any) -> GpuMemory:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    name = nvml.nvmlDeviceGetName(handle)
    processes = []
    # WSL does not list them.
    with suppress(nvml.NVMLError):
        processes = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    return GpuMemory(
        name=name.decode() if isinstance(name, bytes) else name,
        total_mib=memory.total // 2**20,
        free_mib=memory.free // 2**20,
        capability=nvml.nvmlDeviceGetCudaComputeCapability(handle)[0],
        processes=tuple(pid for pid in processes if pid != os.getpid()),
    )


def gpu_handle(nvml: Any, gpu: int) -> Any:
    """Return NVML's handle of a GPU, by its index in TensorFlow.

    Both number GPUs by their places on the bus, but TensorFlow counts CUDA_VISIBLE_DEVICES alone.
    """
    # `base.console` sets it, unless the user has set another one.
    if (order := os.environ.get("CUDA_DEVICE_ORDER")) != "PCI_BUS_ID":
        raise LookupError(f"CUDA_DEVICE_ORDER is {order}, not PCI_BUS_ID")
    names = visible_gpus()
    if gpu >= len(names):
        raise LookupError(f"CUDA has {len(names)} GPUs, but not GPU {gpu}")
    if names[gpu].isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(names[gpu]))
    return nvml.nvmlDeviceGetHandleByUUID(names[gpu])
