"""Section 1: GPUs, driver, CUDA libraries, TensorFlow's build, topology, CPU, memory, packages."""

import ctypes
import os
import platform
import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from itertools import combinations
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.proof.section import Figure, Scope, SectionResult, table
from myxtts.base.machine import available_memory_mib, core_count
from myxtts.config.schema import PlacementConfig
from myxtts.placement.gpu_memory import DriverUnavailable, ask_driver
from myxtts.placement.settings import plan_routes
from myxtts.run.description import source_commit
from myxtts.trial.preflight import prerequisites
from myxtts.trial.preflight.checks import Check
from myxtts.trial.preflight.prerequisites import (
    check_gpu_software,
    check_packages,
    package_requirements,
)

TITLE = "What is here"
# Of a GPU's memory before the proof starts: a desktop uses less, a training more.
MAX_USED_MIB = 1024.0
GPU_FIELDS = {  # of nvidia-smi --query-gpu, which asks NVML and needs no package
    "name": "name",
    "memory.total": "memory, MiB",
    "memory.used": "used before, MiB",
    "compute_cap": "compute capability",
    "clocks.sm": "clock now, MHz",
    "clocks.max.sm": "clock at most, MHz",
    "clocks.max.mem": "memory clock, MHz",
    "power.limit": "power limit, W",
    "pcie.link.gen.current": "PCIe generation now",
    "pcie.link.gen.max": "PCIe generation at most",
    "pcie.link.width.current": "PCIe lanes now",
    "pcie.link.width.max": "PCIe lanes at most",
    "compute_mode": "compute mode",
    "mig.mode.current": "MIG",
    "persistence_mode": "persistence",
}
CUDA_LIBRARY = re.compile(
    r"lib(cuda|cudart|cudnn|cublas|cublasLt|cufft|cusolver|cusparse|nccl|cupti|nvJitLink)\."
)
# Function of each library that returns its version, and whether it is written to an argument.
VERSION_FUNCTIONS = {
    "libcuda.so.1": ("cuDriverGetVersion", True),
    "libcudart.so.12": ("cudaRuntimeGetVersion", True),
    "libcudnn.so.9": ("cudnnGetVersion", False),
    "libnccl.so.2": ("ncclGetVersion", True),
}


def run(scope: Scope) -> SectionResult:
    gpus = queried_gpus() if scope.is_real else []
    data: dict[str, Any] = {
        "gpus": gpus,
        "driver": prerequisites.driver_version(),
        "libraries": library_versions() if scope.is_real else {},
        "build": {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in build_info().items()
        },
        "topology": prerequisites.nvidia_smi("topo", "-m") if scope.is_real else None,
        "peer_access": peer_access(scope.gpus) if scope.is_real else {},
        "host": host(),
        "packages": packages(),
        "commit": source_commit() or "unknown",
    }
    return SectionResult(TITLE, [*page_lines(data)], figures(scope, data), data)


def figures(scope: Scope, data: dict[str, Any]) -> list[Figure]:
    """Return the claims: software suits the GPUs, packages are there, and the GPUs are idle."""
    kind = "simulated" if scope.simulated else "virtual" if scope.virtual else "physical"
    used = [number_of(gpu["memory.used"]) for gpu in data["gpus"]]
    used_mib = max((mib for mib in used if mib is not None), default=None)
    packages_check = check_packages(package_requirements())
    return [
        Figure.of(
            "TensorFlow sees the GPUs",
            f"{scope.gpus} {kind}",
            "1 or more",
            None if scope.simulated else sees_gpus(scope.gpus),
        ),
        *software_figures(scope),
        Figure.of(
            "nothing else uses the GPUs",
            "no GPU" if used_mib is None else f"{used_mib:,.0f} MiB used before the start",
            f"at most {MAX_USED_MIB:,.0f} MiB",
            None if used_mib is None else used_mib <= MAX_USED_MIB,
        ),
        figure_of_check(packages_check),
    ]


def sees_gpus(count: int) -> bool:
    """Return whether TensorFlow sees so many GPUs in this process, too."""
    return len(tf.config.list_physical_devices("GPU")) >= count


def software_figures(scope: Scope) -> list[Figure]:
    """Return the preflight's checks of kernels and cuDNN for all GPUs."""
    if not scope.is_real:
        return [Figure.of("kernels and cuDNN suit the GPUs", "no GPU", "they do", None)]
    settings = PlacementConfig(model_gpus=tuple(range(scope.gpus)))
    checks = check_gpu_software(plan_routes(settings, scope.gpus))
    return [figure_of_check(check) for check in checks]


def figure_of_check(check: Check) -> Figure:
    return Figure.of(check.name, check.found, check.expected, check.status == "passed")


def queried_gpus() -> list[dict[str, str]]:
    """Return the driver's fields of each GPU, in its order; unknown ones are missing."""
    known = [name for name in GPU_FIELDS if _query([name]) is not None]
    rows = _query(known) if known else None
    return [dict(zip(known, values, strict=True)) for values in rows or []]


def _query(names: Sequence[str]) -> list[list[str]] | None:
    query = f"--query-gpu={','.join(names)}"
    output = prerequisites.nvidia_smi(query, "--format=csv,noheader,nounits")
    if output is None:
        return None
    return [line.split(", ") for line in output.splitlines() if line.strip()]


def library_versions(device: str = "/GPU:0") -> dict[str, dict[str, Any]]:
    """Return path and version of each CUDA library that TensorFlow has loaded by now."""
    with tf.device(device):
        image = tf.ones([1, 8, 8, 1])
        tf.nn.conv2d(image, tf.ones([3, 3, 1, 1]), 1, "SAME").numpy()
        tf.matmul(image[0, :, :, 0], image[0, :, :, 0]).numpy()
    loaded = {Path(path).name: path for path in mapped_files()}
    versions: dict[str, dict[str, Any]] = {}
    for name in filter(is_cuda_library, sorted(loaded)):
        versions[name] = {"path": loaded[name], "version": None}
    for name, (function, by_argument) in VERSION_FUNCTIONS.items():
        path = next((path for file, path in loaded.items() if file.startswith(name)), name)
        found = versions.setdefault(Path(path).name, {"path": path})
        found["version"] = library_version(path, function, by_argument)
    return versions


def is_cuda_library(name: str) -> bool:
    return CUDA_LIBRARY.match(name) is not None


def mapped_files() -> Iterator[str]:
    """Yield the files that are mapped into this process (Linux)."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return
    for line in maps.read_text(encoding="utf-8", errors="replace").splitlines():
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


def peer_access(gpus: int) -> dict[str, str]:
    """Return for each pair of GPUs whether they read each other's memory, and their connection."""
    pairs = combinations(range(gpus), 2)
    return {f"{first}-{second}": gpu_peer_access(first, second) for first, second in pairs}


def gpu_peer_access(first: int, second: int) -> str:
    """Return in words whether two GPUs, in TensorFlow's numbering, read each other's memory."""
    handles: list[Any] = []

    def ask(nvml: Any, handle: Any) -> int | None:
        handles.append(handle)
        if len(handles) == 1:
            return None
        return nvml.nvmlDeviceGetP2PStatus(*handles, nvml.NVML_P2P_CAPS_INDEX_READ)

    try:
        _, status = ask_driver((first, second), ask)
    except DriverUnavailable as reason:
        return f"unknown: {reason}"
    # NVML_P2P_STATUS_OK; the other numbers say which part lacks it.
    return "yes" if status == 0 else f"no (status {status} of the driver)"


def build_info() -> dict[str, Any]:
    versions = {"version": tf.__version__, "commit": tf.version.GIT_VERSION}
    return {**versions, **tf.sysconfig.get_build_info()}


def host() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
        names = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
        model = names[0] if names else model
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**20
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "usable_cores": core_count(),
        "memory_mib": round(pages),
        "available_memory_mib": available_memory_mib(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def packages() -> dict[str, str]:
    """Return the version of each package that MyXTTS requires; "missing" if it is not installed."""
    versions = {}
    for requirement in package_requirements():
        try:
            versions[requirement.name] = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            versions[requirement.name] = "missing"
    return versions


def number_of(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def page_lines(data: dict[str, Any]) -> Iterator[str]:
    host, build = data["host"], data["build"]
    cuda = f"CUDA {build.get('cuda_version')}, cuDNN {build.get('cudnn_version')}"
    here = {
        "CPU": f"{host['cpu']}, {host['cores']} cores, of which {host['usable_cores']} usable",
        "memory": f"{host['memory_mib']:,} MiB, {host['available_memory_mib']:,.0f} available",
        "system": f"{host['system']}, Python {host['python']}",
        "commit": data["commit"],
        "driver": data["driver"] or "none",
        "TensorFlow": f"{build['version']}, {cuda}",
        "built for": ", ".join(build.get("cuda_compute_capabilities", ["no card"])),
        "packages": ", ".join(map(" ".join, data["packages"].items())),
    }
    yield from table(("", "here"), [*here.items()])
    if not data["gpus"]:
        yield "GPUs, CUDA libraries, topology and peer access: not shown without a GPU."
        return
    names = list(data["gpus"][0])
    header = ("GPU", *map(str, range(len(data["gpus"]))))
    rows = [(GPU_FIELDS[name], *(gpu[name] for gpu in data["gpus"])) for name in names]
    yield from table(header, rows)
    libraries = data["libraries"].items()
    rows = [(name, found["version"] or "", found["path"]) for name, found in libraries]
    yield from table(("loaded library", "version", "path"), rows)
    for pair, access in data["peer_access"].items():
        yield f"Peer access of GPUs {pair}: {access}."
    if data["topology"]:
        yield from ("", "```", data["topology"].rstrip(), "```")
