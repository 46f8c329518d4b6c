"""The control groups of this process: limits that containers and batch systems set (Linux). No
TensorFlow.
"""

from collections.abc import Iterator
from pathlib import Path


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[Path, int]]:
    """Yield folder and version (1 or 2) of each control group that limits this process, and of all
    around it.

    Args:
        controller: such as cpu or memory.
    """
    for line in read_lines(root / "proc/self/cgroup"):
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        folder = base / group.lstrip("/")
        for ancestor in (folder, *folder.parents):  # a container may see its own group as the base
            yield ancestor, 1 if controllers else 2
            if ancestor == base:
                break


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file of the kernel, or none without it."""
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
