"""Facts about driver and GPUs from NVIDIA's driver and nvidia-smi, where they are installed."""

import os
import re
import subprocess
from pathlib import Path

TIMEOUT_S = 20.0  # nvidia-smi never returns if the driver hangs


def driver_version() -> str | None:
    """Return the version of the loaded driver, or None without one. WSL has no /proc entry, so nvidia-smi is used."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader") or ""
    version = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", text)
    return version[0] if version else None


def peer_access(first: int, second: int) -> tuple[bool | None, str]:
    """Return whether two GPUs, in TensorFlow's numbering, can read each other's memory, and their connection.

    Returns:
        None if it is unknown, and the reason.
    """
    rows = (_driver_index(first), _driver_index(second))
    if rows[0] is None or rows[1] is None:
        return None, "CUDA_VISIBLE_DEVICES names GPUs by UUID, nvidia-smi by number"
    peers, links = nvidia_smi("topo", "-p2p", "r"), nvidia_smi("topo", "-m")
    if peers is None:
        return None, "nvidia-smi is missing or has no topology"
    entry = matrix_entry(peers, rows[0], rows[1])
    if entry is None:
        return None, f"nvidia-smi does not list GPU {rows[0]} and GPU {rows[1]}"
    link = matrix_entry(links or "", rows[0], rows[1])
    return entry == "OK", f"{entry}, connected by {link}" if link else entry


def matrix_entry(matrix: str, row: int, column: int) -> str | None:
    """Return entry (GPUrow, GPUcolumn) of a matrix printed by `nvidia-smi topo`, or None if it has none."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", matrix)  # the header is underlined
    table = [line.split() for line in plain.splitlines() if line.split()[:1]]
    header = next((cells for cells in table if f"GPU{column}" in cells and cells[0].startswith("GPU")), None)
    cells = next((cells for cells in table if cells[0] == f"GPU{row}" and cells != header), None)
    if header is None or cells is None:
        return None
    index = header.index(f"GPU{column}") + 1  # the header has no cell above the row names
    return cells[index] if index < len(cells) else None


def _driver_index(gpu: int) -> int | None:
    """Return the driver's number of a GPU. CUDA counts only the GPUs in CUDA_VISIBLE_DEVICES."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[gpu] if gpu < len(visible) else str(gpu)
    return int(name) if name.isdigit() else None


def nvidia_smi(*arguments: str) -> str | None:
    """Return the output of nvidia-smi, or None if it is missing, fails or hangs."""
    try:
        process = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return process.stdout if process.returncode == 0 else None
