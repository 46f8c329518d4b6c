"""Processor cores, memory and threads that this process may use. No TensorFlow.

Containers and batch systems limit cores and memory by control groups (Linux).
"""

import math
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

FEW_CORES = 2

# The kernel frees the last, a part of the usage in memory.stat, on demand.
MEMORY_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def automatic_pools(
    on_gpu: bool, cores: int, small_operations: bool
) -> tuple[int | None, int | None]:
    """Return the threads of TensorFlow's pools, intra-op and inter-op, for `auto`; None: its own.

    The intra-op pool splits one operation over several threads. The inter-op pool runs independent
    operations at the same time, and those of tf.data. See `Task.has_small_operations`.
    """
    if on_gpu:
        return None, None
    # On up to 2 cores one thread computes each small operation: to split it over two threads costs
    # more than it gains (docs/decisions.md). On more cores nothing was measured.
    if small_operations and cores <= FEW_CORES:
        return 1, cores
    return cores, cores


def usable_cores() -> list[int]:
    """Return the cores that this process may run on."""
    return sorted(os.sched_getaffinity(0))


def core_count() -> int:
    """Count the cores that this process may keep busy, within the quota of its container."""
    return max(1, math.ceil(min(len(usable_cores()), cpu_quota())))


def is_pinned() -> bool:
    """Return whether this process may run on some of the machine's cores only."""
    return len(usable_cores()) < (os.cpu_count() or 1)


def cpu_quota(root: Path = Path("/")) -> float:
    """Return how many cores' time the control groups of this process allow; inf without a limit.

    `docker run --cpus 2` and the CPU limit of a Kubernetes pod are such quotas; sched_getaffinity
    does not show them.
    """
    cores = math.inf
    for folder, version in control_groups("cpu", root):
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if version == 1 else ("cpu.max",)
        # Quota and period in microseconds: `200000 100000`. The root group has no such file.
        lines = chain.from_iterable(read_lines(folder / name) for name in files)
        words = " ".join(lines).split()
        # `max` and -1 are no limit.
        if len(words) == 2 and words[0] not in ("max", "-1"):
            cores = min(cores, int(words[0]) / int(words[1]))
    return cores


def available_memory_mib(root: Path = Path("/")) -> float:
    """Return the memory that this process may still take without swapping.

    It is the least of the machine's and of each control group of the process.
    """
    left_mib = []
    for line in read_lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            left_mib.append(float(line.split()[1]) / 2**10)
    for folder, version in control_groups("memory", root):
        limit_file, usage_file, freed_on_demand = MEMORY_FILES[version]
        limits = read_lines(folder / limit_file)
        usages = read_lines(folder / usage_file)
        if limits and usages and limits[0] != "max":
            statistics = dict(line.split(" ", 1) for line in read_lines(folder / "memory.stat"))
            used = int(usages[0]) - int(statistics.get(freed_on_demand, 0))
            left_mib.append((int(limits[0]) - used) / 2**20)
    return min(left_mib)


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, int]]:
    """Yield folder and version (1 or 2) of each control group of this process and around it."""
    for line in read_lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        version, base = 2, root / "sys/fs/cgroup"
        if controllers:
            version, base = 1, base / controller
        folder = base / group.lstrip("/")
        # Up to the base only: a container may see its own group as the base.
        for ancestor in (folder, *folder.parents):
            yield ancestor, version
            if ancestor == base:
                break


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file of the kernel; none if it does not exist."""
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
