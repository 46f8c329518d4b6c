"""Facts about driver and GPUs from NVIDIA's driver and nvidia-smi, where they are installed."""

import ctypes
import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from myxtts.distributed.processes import NVIDIA_SMI_S, output_of
from myxtts.placement.gpu_memory import DriverUnavailable, driver_indices


def driver_version() -> str | None:
    """Return the version of the loaded driver, or None without one. WSL has no /proc entry, so
    nvidia-smi is used.
    """
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader") or ""
    version = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", text)
    return version[0] if version else None


def cudnn_version() -> tuple[int, int, int] | None:
    """Return the version of the cuDNN that TensorFlow has loaded, else of the one that is
    installed, or None.
    """
    path = next(
        (path for path in mapped_files() if Path(path).name.startswith("libcudnn.so")), None
    )
    number = None if path is None else library_version(path, "cudnnGetVersion", by_argument=False)
    if number is not None:
        return number // 10_000, number // 100 % 100, number % 100  # cuDNN 9: 91002 is 9.10.2
    try:
        major, minor, patch = metadata.version("nvidia-cudnn-cu12").split(".")[:3]
    except metadata.PackageNotFoundError:
        return None
    return int(major), int(minor), int(patch)


def code_for(capability: str, built: Sequence[str]) -> str:
    """Return what a build of TensorFlow has for a card: native code, PTX that the driver compiles,
    or no code.

    Native code of a capability runs on cards with the same major number and the same or a higher
    minor number; PTX on all cards of the same or a higher capability (CUDA C++ Programming Guide,
    "Application Compatibility").

    Args:
        built: such as sm_80 (native) and compute_90 (PTX, and native for 9.0).
    """
    if not (match := re.fullmatch(r"(\d+)\.(\d)", capability)):
        return "unknown"
    card = int(match[1]), int(match[2])
    targets = [
        (name.partition("_")[0], divmod(int(digits[0]), 10))
        for name in built
        if (digits := re.findall(r"\d+", name))
    ]
    if any(target[0] == card[0] and target[1] <= card[1] for _, target in targets):
        return "native"
    return (
        "PTX" if any(kind == "compute" and target <= card for kind, target in targets) else "none"
    )


def mapped_files() -> Iterator[str]:
    """Yield the files that are mapped into this process (Linux)."""
    maps = Path("/proc/self/maps")
    for line in (
        maps.read_text(encoding="utf-8", errors="replace").splitlines() if maps.exists() else ()
    ):
        fields = line.split(maxsplit=5)
        if len(fields) == 6:
            yield fields[5]


def library_version(path: str, function: str, by_argument: bool) -> int | None:
    """Return the version that a library reports, as its own integer; None if it is not there."""
    try:
        call = getattr(ctypes.CDLL(path), function)
    except (OSError, AttributeError):
        return None
    if not by_argument:
        call.restype = ctypes.c_size_t
        return int(call())
    value = ctypes.c_int()
    return value.value if call(ctypes.byref(value)) == 0 else None


def peer_access(first: int, second: int) -> tuple[bool | None, str]:
    """Return whether two GPUs, in TensorFlow's numbering, can read each other's memory, and their
    connection.

    Returns:
        None if it is unknown, and the reason.
    """
    try:
        rows = driver_indices((first, second))
    except DriverUnavailable as reason:
        return None, str(reason)
    peers, links = nvidia_smi("topo", "-p2p", "r"), nvidia_smi("topo", "-m")
    if peers is None:
        return None, "nvidia-smi is missing or has no topology"
    entry = matrix_entry(peers, rows[0], rows[1])
    if entry is None:
        return None, f"nvidia-smi does not list GPU {rows[0]} and GPU {rows[1]}"
    link = matrix_entry(links or "", rows[0], rows[1])
    return entry == "OK", f"{entry}, connected by {link}" if link else entry


def matrix_entry(matrix: str, row: int, column: int) -> str | None:
    """Return entry (GPUrow, GPUcolumn) of a matrix printed by `nvidia-smi topo`, or None if it has
    none.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", matrix)  # the header is underlined
    table = [line.split() for line in plain.splitlines() if line.split()[:1]]
    header = next(
        (cells for cells in table if f"GPU{column}" in cells and cells[0].startswith("GPU")), None
    )
    cells = next((cells for cells in table if cells[0] == f"GPU{row}" and cells != header), None)
    if header is None or cells is None:
        return None
    index = header.index(f"GPU{column}") + 1  # the header has no cell above the row names
    return cells[index] if index < len(cells) else None


def nvidia_smi(*arguments: str) -> str | None:
    """Return the output of nvidia-smi, or None if it is missing, fails or hangs."""
    return output_of(("nvidia-smi", *arguments), NVIDIA_SMI_S)
