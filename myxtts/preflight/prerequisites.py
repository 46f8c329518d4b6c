"""Section 1: driver, GPUs, CUDA libraries, packages and disk, before TensorFlow starts devices."""

import ctypes
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import tensorflow as tf
from packaging.requirements import Requirement
from packaging.version import Version

from myxtts.config.schema import Config, PlacementConfig
from myxtts.distributed.processes import NVIDIA_SMI_S, output_of
from myxtts.errors import ConfigError, PlacementError
from myxtts.placement.devices import UNSUPPORTED_CAPABILITY
from myxtts.placement.gpu_memory import DriverUnavailable, check_limits, limits_of, read_memory
from myxtts.placement.routes import named_gpus, plan_routes
from myxtts.preflight.checks import Check, failed_by, recommended, required
from myxtts.training.runs import RunFolder

# In a checkout.
REQUIREMENTS_FILE = Path(__file__).parents[2] / "requirements.txt"

# For logs, samples and cached manifests; section 3 counts the checkpoints.
MIN_FREE_MIB = 1024
TRY_WITHOUT_GPU = "To try the pipeline without a GPU: --simulate-gpus 2."
NO_GPU_NEEDED = "none is needed: the settings name no real GPU"

# For CUDA 12 (CUDA 12.5 release notes, minor version compatibility).
MIN_DRIVER = "525.60.13"

# The first that reads the PTX of CUDA 12.5 (CUDA 12.5 release notes).
PTX_DRIVER = "555.42.02"
INSTALL_CUDA = f'pip install "tensorflow[and-cuda]=={tf.__version__}"'
NVIDIA_CONTAINER = "NVIDIA's container of TensorFlow (nvcr.io/nvidia/tensorflow)"
# XLA of TensorFlow 2.21 finds no engine for a convolution with bias in cuDNN 9.3
# (github.com/calad0i/HGQ2/issues/14) and 9.5.1, but one in 9.24
# (github.com/aws/deep-learning-containers/pull/6418). 9.6 to 9.23 were not tried there.
CUDNN_FIXED = (9, 6, 0)

# As in requirements-gpu.txt.
CUDNN_REQUIREMENT = ">=9.24,<10"


def check_prerequisites(config: Config) -> Iterator[Check]:
    """Check driver, GPUs, TensorFlow, packages and disk without starting a device."""
    gpu_count = required_gpus(config.placement)
    yield check_driver(gpu_count)
    yield check_gpus(gpu_count, config.placement.simulate_gpus)
    yield check_tensorflow(gpu_count)
    yield from check_gpu_software(config.placement)
    yield from check_memory_limits(config.placement)
    yield check_packages(package_requirements())
    yield from check_disk(config)


def required_gpus(placement: PlacementConfig) -> int:
    """Return how many physical GPUs the settings need; 0 if GPUs are simulated or none is named."""
    gpus = named_gpus(placement)
    return 0 if placement.simulate_gpus or not gpus else max(gpus) + 1


def check_driver(gpu_count: int) -> Check:
    version = driver_version()
    is_suitable = version is not None and Version(version) >= Version(MIN_DRIVER)
    return required(
        is_suitable or not gpu_count,
        "driver",
        f"an NVIDIA driver, {MIN_DRIVER} or later" if gpu_count else NO_GPU_NEEDED,
        version or "no NVIDIA driver",
        f"Install a current NVIDIA driver and restart. {TRY_WITHOUT_GPU}",
    )


def check_gpus(gpu_count: int, simulated: int) -> Check:
    gpus = []
    for number, gpu in enumerate(tf.config.list_physical_devices("GPU")):
        details = tf.config.experimental.get_device_details(gpu)
        capability = ".".join(map(str, details.get("compute_capability", ()))) or "unknown"
        name = details.get("device_name", "unnamed")
        gpus.append(f"{number}: {name} (compute capability {capability})")
    found = "; ".join(gpus) or "TensorFlow sees no GPU"
    if simulated and gpus:
        return recommended(
            False,
            "GPUs",
            "simulated GPUs hide no real one",
            f"{found}; hidden by --simulate-gpus",
            "To use them: --simulate-gpus 0.",
        )
    return required(
        len(gpus) >= gpu_count,
        "GPUs",
        f"TensorFlow sees {gpu_count} GPUs or more" if gpu_count else NO_GPU_NEEDED,
        found,
        "Run nvidia-smi. A GPU that nvidia-smi lists but TensorFlow does not see is hidden by"
        f" CUDA_VISIBLE_DEVICES, or CUDA libraries are missing ({INSTALL_CUDA})."
        f" {TRY_WITHOUT_GPU}",
    )


def check_tensorflow(gpu_count: int) -> Check:
    build = tf.sysconfig.get_build_info()
    built = "without CUDA"
    if build["is_cuda_build"]:
        built = f"with CUDA {build['cuda_version']} and cuDNN {build['cudnn_version']}"
    return required(
        build["is_cuda_build"] or not gpu_count,
        "TensorFlow",
        "a build with CUDA" if gpu_count else "any build: the settings name no real GPU",
        f"{tf.__version__}, built {built}",
        f"Install a build with CUDA: {INSTALL_CUDA}.",
    )


def check_memory_limits(placement: PlacementConfig) -> Iterator[Check]:
    """Check the memory limits against what the driver reports, where there are limits."""
    try:
        limits = limits_of(plan_routes(placement, len(tf.config.list_physical_devices("GPU"))))
    # Section 2 reports it.
    except PlacementError:
        return
    if not limits:
        return
    name = "memory limits"
    expected = "they fit besides what CUDA and its libraries need"
    try:
        memory = read_memory(tuple(limits))
        check_limits(limits, memory)
    except DriverUnavailable as reason:
        yield recommended(
            False, name, expected, f"unknown: {reason}", "Compare the limits with nvidia-smi."
        )
    except PlacementError as error:
        yield failed_by(error, name, expected)
    else:
        yield required(True, name, expected, "; ".join(gpu.describe() for gpu in memory.values()))


def package_requirements() -> list[Requirement]:
    """Read the requirements of MyXTTS from the installed package, or from requirements.txt in a
    plain checkout.
    """
    try:
        lines = metadata.requires("myxtts") or []
    except metadata.PackageNotFoundError:
        text = REQUIREMENTS_FILE.read_text(encoding="utf-8")
        lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    requirements = [Requirement(line) for line in lines if line]
    return [
        item for item in requirements if item.marker is None or item.marker.evaluate({"extra": ""})
    ]


def check_packages(requirements: Sequence[Requirement]) -> Check:
    """Compare the installed versions with the requirements."""
    faults = {}
    for requirement in requirements:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            faults[requirement] = f"{requirement.name} is missing"
            continue
        # A nightly build of TensorFlow is newer than the release that it precedes.
        if not requirement.specifier.contains(version, prereleases=True):
            fault = f"{requirement.name} is {version}, not {requirement.specifier}"
            faults[requirement] = fault
    packages = " ".join(f'"{requirement.name}{requirement.specifier}"' for requirement in faults)
    count = len(requirements)
    return required(
        not faults,
        "packages",
        f"the {count} packages that MyXTTS requires, in suitable versions",
        ", ".join(faults.values()) or f"{count} of {count} installed",
        f"Install them: pip install {packages}",
    )


def check_disk(config: Config) -> Iterator[Check]:
    runs_dir = Path(config.run.runs_dir)
    folder = existing_parent(runs_dir)
    error = write_error(folder)
    yield required(
        not error,
        "run folder",
        f"{runs_dir} is writable",
        f"{folder} is not writable: {error}" if error else f"{folder} is writable",
        "Choose another --runs-dir.",
    )
    free_mib = shutil.disk_usage(folder).free / 2**20
    yield required(
        free_mib >= MIN_FREE_MIB,
        "free disk space",
        f"{MIN_FREE_MIB} MiB or more in {runs_dir}, plus the checkpoints (section 3)",
        f"{free_mib:,.0f} MiB",
        "Free some disk space, or choose another --runs-dir.",
    )
    name = "name of the run"
    expected = "no run has this name, or --resume is given"
    try:
        RunFolder(runs_dir / config.run.run).check_not_existing(config.run.resume)
    except ConfigError as existing:
        yield failed_by(existing, name, expected)._replace(status="warning")
    else:
        yield required(True, name, expected, config.run.run)


def existing_parent(path: Path) -> Path:
    """Return the path, or its closest parent that exists."""
    path = path.resolve()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def write_error(folder: Path) -> str:
    """Try to write into a folder; return the reason of the failure, or an empty string."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def check_gpu_software(settings: PlacementConfig) -> Iterator[Check]:
    """Check whether this build of TensorFlow and its libraries suit the GPUs of the settings."""
    capabilities = used_capabilities(settings)
    if not capabilities:
        yield required(
            True,
            "kernels, cuDNN and XLA",
            "they suit the GPUs of the run",
            "nothing was checked: the run has no real GPU",
        )
        return
    built = tf.sysconfig.get_build_info().get("cuda_compute_capabilities", [])
    driver = driver_version()
    yield from (check_kernels(capability, built, driver) for capability in capabilities)
    yield check_cudnn(cudnn_version())
    for capability in capabilities:
        yield recommended(
            capability < UNSUPPORTED_CAPABILITY,
            "XLA",
            "XLA of this TensorFlow generates code for compute capabilities below 12.0",
            f"compute capability {'.'.join(map(str, capability))}",
            f"Do not use --compile xla, or use {NVIDIA_CONTAINER}.",
        )


def used_capabilities(settings: PlacementConfig) -> list[tuple[int, int]]:
    """Return the compute capabilities of the real GPUs of the settings, or of all if the settings
    do not fit them.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if settings.simulate_gpus:
        return []
    try:
        devices = plan_routes(settings, len(gpus)).devices
        gpus = [gpus[device.physical] for device in devices if device.physical is not None]
    # Section 2 reports it.
    except PlacementError:
        pass
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    known = {detail.get("compute_capability") for detail in details}
    return sorted(known - {None})


def check_kernels(capability: tuple[int, int], built: Sequence[str], driver: str | None) -> Check:
    """Check that TensorFlow has code for a GPU, and that the driver can compile it if it is PTX."""
    number = ".".join(map(str, capability))
    name = f"kernels for compute capability {number}"
    expected = "native ones in this build of TensorFlow"
    code = code_for(capability, built)
    found = f"{code}; built for {', '.join(built) or 'no GPU'}"
    if code != "PTX":
        to_do = "Use another GPU, or a build of TensorFlow for this one."
        return required(code != "none", name, expected, found, to_do)
    to_do = (
        "The driver compiles the kernels at their first use, which may take many minutes; set "
        "CUDA_CACHE_MAXSIZE=4294967296 to keep all of them. "
    )
    if driver is not None and Version(driver) < Version(PTX_DRIVER):
        to_do += f"Driver {driver} is too old for this: install {PTX_DRIVER} or later. "
    to_do += f"If the kernels fail with CUDA_ERROR_INVALID_PTX, use {NVIDIA_CONTAINER}."
    return recommended(False, name, expected, found, to_do)


def code_for(capability: tuple[int, int], built: Sequence[str]) -> str:
    """Return what a build of TensorFlow has for a card: native code, PTX that the driver compiles,
    or none.

    Native code of a capability runs on cards with the same major number and the same or a higher
    minor number; PTX on all cards of the same or a higher capability (CUDA C++ Programming Guide,
    "Application Compatibility").

    Args:
        built: such as sm_80 (native) and compute_90 (PTX, and native for 9.0).
    """
    major, minor = capability
    code = "none"
    for name in built:
        digits = re.search(r"\d+", name)
        if digits is None:
            continue
        target = divmod(int(digits[0]), 10)
        if target[0] == major and target[1] <= minor:
            return "native"
        if name.startswith("compute_") and target <= capability:
            code = "PTX"
    return code


def check_cudnn(version: tuple[int, int, int] | None) -> Check:
    """Check the version of cuDNN against those with which XLA cannot compile convolutions."""
    found = "unknown: TensorFlow has loaded no cuDNN"
    if version is not None:
        found = ".".join(map(str, version))
    return recommended(
        version is not None and version >= CUDNN_FIXED,
        "cuDNN",
        "9.6 or later, as --compile xla fails on convolutions with 9.3 to 9.5",
        found,
        f'pip install "nvidia-cudnn-cu12{CUDNN_REQUIREMENT}", or do not use --compile xla.',
    )


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
    for path in mapped_files():
        if Path(path).name.startswith("libcudnn.so"):
            number = library_version(path, "cudnnGetVersion", by_argument=False)
            # cuDNN 9: 91002 is 9.10.2.
            if number is not None:
                return number // 10_000, number // 100 % 100, number % 100
            break
    try:
        release = Version(metadata.version("nvidia-cudnn-cu12"))
    except metadata.PackageNotFoundError:
        return None
    return release.major, release.minor, release.micro


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


def nvidia_smi(*arguments: str) -> str | None:
    """Return the output of nvidia-smi, or None if it is missing, fails or hangs."""
    return output_of(("nvidia-smi", *arguments), NVIDIA_SMI_S)
