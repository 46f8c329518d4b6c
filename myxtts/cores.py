"""The processor cores that this process may use. No TensorFlow."""

import math
import os
from pathlib import Path

from myxtts.control_groups import control_groups, read_lines


def usable_cores() -> list[int]:
    """Return the cores that this process may run on; empty where the system cannot pin
    processes.
    """
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def core_count() -> int:
    """Return how many cores this process may keep busy: those that it may run on, within the quota
    of its container.
    """
    cores = len(usable_cores()) or os.cpu_count() or 1
    return max(1, math.ceil(min(cores, cpu_quota())))


def is_pinned() -> bool:
    """Return whether this process may run on some of the machine's cores only."""
    return 0 < len(usable_cores()) < (os.cpu_count() or 1)


def cpu_quota(root: Path = Path("/")) -> float:
    """Return the cores' worth of time that the control groups of this process allow; without a
    limit, inf.

    `docker run --cpus 2` and the CPU limit of a Kubernetes pod are such quotas; sched_getaffinity
    does not show them.
    """
    return min(
        (_quota(folder, version) for folder, version in control_groups("cpu", root)),
        default=math.inf,
    )


def _quota(folder: Path, version: int) -> float:
    """Return a quota over its period, both in microseconds: `200000 100000` is 2.0; `max` and -1
    are no limit.
    """
    files = ("cpu.max",) if version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    try:
        quota, period = " ".join(
            line for file in files for line in read_lines(folder / file)
        ).split()
        return math.inf if quota in ("max", "-1") else int(quota) / int(period)
    except ValueError:  # the root has no such file
        return math.inf
