"""The memory of the host that this process may still take."""

from collections.abc import Iterator
from pathlib import Path

# Files of a control group: limit, usage, and the part of the usage in memory.stat that the kernel frees on demand.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_memory_mib(root: Path = Path("/")) -> float | None:
    """Return the memory that this process may still take without swapping, or None if the system has no such figure.

    It is the smallest of the machine's available memory and of what is left to each control group of the process, as
    containers and batch systems set them.
    """
    return min((*_left_on_machine(root), *_left_in_groups(root)), default=None)


def _left_on_machine(root: Path) -> Iterator[float]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield float(line.split()[1]) / 2**10


def _left_in_groups(root: Path) -> Iterator[float]:
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base, names = root / "sys/fs/cgroup" / ("memory" if controllers else ""), _V1 if controllers else _V2
        folder = base / group.lstrip("/")
        for ancestor in (folder, *folder.parents):  # a container may see its own group as the base
            yield from _left_in_group(ancestor, *names)
            if ancestor == base:
                break


def _left_in_group(folder: Path, limit: str, usage: str, freed_on_demand: str) -> Iterator[float]:
    limits, usages = _lines(folder / limit), _lines(folder / usage)
    if limits and usages and limits[0] != "max":
        statistics = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat"))
        yield (int(limits[0]) - int(usages[0]) + int(statistics.get(freed_on_demand, 0))) / 2**20


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
