"""What NVIDIA's own program says of driver and GPUs. Everything here is absent on a machine without it."""

import os
import re
import subprocess
from pathlib import Path

TIMEOUT_S = 20.0  # with a driver that hangs, nvidia-smi never returns


def driver_version() -> str | None:
    """Of the loaded kernel module, or what nvidia-smi tells where /proc does not (WSL); None without a driver."""
    try:
        told = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        told = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
    found = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", told or "")
    return found[0] if found else None


def peer_access(first: int, second: int) -> tuple[bool | None, str]:
    """Whether two GPUs, as TensorFlow numbers them, read each other's memory, and how they are joined.

    Returns:
        None where that cannot be known, with the reason.
    """
    rows = [_driver_index(gpu) for gpu in (first, second)]
    if None in rows:
        return None, "CUDA_VISIBLE_DEVICES names GPUs by UUID, nvidia-smi by number"
    peers, joined = (_nvidia_smi("topo", *flags) for flags in (("-p2p", "r"), ("-m",)))
    if peers is None:
        return None, "nvidia-smi is not there or tells no topology"
    entry = matrix_entry(peers, *rows)
    if entry is None:
        return None, f"nvidia-smi tells nothing of GPU {rows[0]} and GPU {rows[1]}"
    link = matrix_entry(joined or "", *rows)
    return entry == "OK", f"{entry}, joined by {link}" if link else entry


def matrix_entry(matrix: str, row: int, column: int) -> str | None:
    """Entry (GPUrow, GPUcolumn) of a matrix as `nvidia-smi topo` prints it; None where it has none."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", matrix)  # the header is underlined
    table = [line.split() for line in plain.splitlines() if line.split()[:1]]
    header = next((cells for cells in table if f"GPU{column}" in cells and cells[0].startswith("GPU")), None)
    cells = next((cells for cells in table if cells[0] == f"GPU{row}" and cells != header), None)
    if header is None or cells is None:
        return None
    at = header.index(f"GPU{column}") + 1  # the header has no cell over the names of the rows
    return cells[at] if at < len(cells) else None


def _driver_index(gpu: int) -> int | None:
    """The driver's number of a GPU: CUDA counts only those that CUDA_VISIBLE_DEVICES names."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[gpu] if gpu < len(visible) else str(gpu)
    return int(name) if name.isdigit() else None


def _nvidia_smi(*arguments: str) -> str | None:
    """Its output; None where it is missing, fails or hangs."""
    try:
        told = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return told.stdout if told.returncode == 0 else None
