"""Routes: which device makes batches and which device trains on them. No TensorFlow.

A placement is a tuple of routes, one for each replica of the model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Route:
    """Devices, such as `/GPU:0`: `data` makes the batches, in turn with `further_data`, and `model`
    trains on them. `data_shares` are those of the data devices; () are equal ones.
    """

    data: str
    model: str
    further_data: tuple[str, ...] = ()
    data_shares: tuple[float, ...] = ()

    @property
    def data_devices(self) -> tuple[str, ...]:
        """All devices that make batches, in the order of their turns."""
        return self.data, *self.further_data

    def turns(self) -> Iterator[str]:
        """Yield the data device that makes the next batch, endlessly: the one that would end it
        first if none ever waited. With equal shares they take turns in order.
        """
        shares = self.data_shares or (1.0,) * len(self.data_devices)
        ends = [1.0 / share for share in shares]
        while True:
            turn = ends.index(min(ends))
            yield self.data_devices[turn]
            ends[turn] += 1.0 / shares[turn]

    @property
    def is_between_devices(self) -> bool:
        return any(device != self.model for device in self.data_devices)


@dataclass(frozen=True)
class LogicalDevice:
    """A TensorFlow device, and the hardware behind it."""

    name: str  # /GPU:0, /CPU:1
    physical: int | None  # index of the physical or simulated GPU; None is the CPU
    memory_mib: int | None = None  # fixed limit; None grows as needed


@dataclass(frozen=True)
class Placement:
    """Devices and thread pools to configure before TensorFlow starts, and the routes."""

    name: str  # such as `single`, `dual, 2 producers, 3 replicas` or `replicated`
    routes: tuple[Route, ...]
    devices: tuple[LogicalDevice, ...]
    simulated: bool
    observer: str = ""  # it validates and writes samples; empty if the first model device does
    intra_op_threads: int | Literal["auto"] = "auto"
    inter_op_threads: int | Literal["auto"] = "auto"

    @property
    def on_gpu(self) -> bool:
        return self.devices[0].name.startswith("/GPU")

    @property
    def gpus(self) -> list[int]:
        """The real GPUs by ascending physical index."""
        used = {device.physical for device in self.devices if device.physical is not None}
        return [] if self.simulated else sorted(used)
