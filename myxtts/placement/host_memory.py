"""The memory of the host that this process may still take."""

from collections.abc import Iterator
from pathlib import Path

from myxtts.control_groups import control_groups, read_lines

# Files of a control group: limit, usage, and the part of the usage in memory.stat that the kernel
# frees on demand.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_memory_mib(root: Path = Path("/")) -> float | None:
    """Return the memory that this process may still take without swapping, or None if the system
    has no such figure.

    It is the smallest of the machine's available memory and of what is left to each control group
    of the process, as containers and batch systems set them.
    """
    return min((*_left_on_machine(root), *_left_in_groups(root)), default=None)


def _left_on_machine(root: Path) -> Iterator[float]:
    for line in read_lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield float(line.split()[1]) / 2**10


def _left_in_groups(root: Path) -> Iterator[float]:
    for folder, version in control_groups("memory", root):
        yield from _left_in_group(folder, *(_V1 if version == 1 else _V2))


def _left_in_group(folder: Path, limit: str, usage: str, freed_on_demand: str) -> Iterator[float]:
    limits, usages = read_lines(folder / limit), read_lines(folder / usage)
    if limits and usages and limits[0] != "max":
        statistics = dict(line.split(" ", 1) for line in read_lines(folder / "memory.stat"))
        yield (int(limits[0]) - int(usages[0]) + int(statistics.get(freed_on_demand, 0))) / 2**20
