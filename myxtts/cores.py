"""The processor cores that this process may use. No TensorFlow."""

import math
import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


def usable_cores() -> list[int]:
    """Return the cores that this process may run on; empty where the system cannot pin processes."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def core_count() -> int:
    """Return how many cores this process may keep busy: those that it may run on, within the quota of its container."""
    cores = len(usable_cores()) or os.cpu_count() or 1
    return max(1, math.ceil(min(cores, cpu_quota())))


def is_pinned() -> bool:
    """Return whether this process may run on some of the machine's cores only."""
    return 0 < len(usable_cores()) < (os.cpu_count() or 1)


def cpu_quota() -> float:
    """Return the cores' worth of time that the cgroups of this process allow (Linux, cgroup v2); without one, inf.

    `docker run --cpus 2` and the CPU limit of a Kubernetes pod are such quotas; sched_getaffinity does not show them.
    """
    return min((_quota(folder / "cpu.max") for folder in _own_cgroups()), default=math.inf)


def _own_cgroups() -> list[Path]:
    """Return the folders of the cgroup of this process and of all cgroups around it."""
    try:
        lines = OWN_CGROUP.read_text().splitlines()
    except OSError:  # not Linux
        return []
    paths = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    return [folder for path in paths for folder in (CGROUPS / path, *(CGROUPS / path).parents)]


def _quota(file: Path) -> float:
    """Return a quota over its period, both in microseconds: `200000 100000` is 2.0; `max 100000` has no limit."""
    try:
        quota, period = file.read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):  # the root has no such file
        return math.inf
