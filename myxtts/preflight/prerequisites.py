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
    expected = f"an NVIDIA driver, {MIN_DRIVER} or later" if gpu_count else NO_GPU_NEEDED
    to_do = f"Install a current NVIDIA driver and restart. {TRY_WITHOUT_GPU}"
    suitable = version is not None and Version(version) >= Version(MIN_DRIVER)
    return required(
        suitable or not gpu_count, "driver", expected, version or "no NVIDIA driver", to_do
    )


def check_gpus(gpu_count: int, simulated: int) -> Check:
    gpus = [describe_gpu(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    expected = f"TensorFlow sees {gpu_count} GPUs or more" if gpu_count else NO_GPU_NEEDED
    found = (
        "; ".join(f"{number}: {gpu}" for number, gpu in enumerate(gpus)) or "TensorFlow sees no GPU"
    )
    if simulated and gpus:
        found += "; hidden by --simulate-gpus"
        return recommended(
            False,
            "GPUs",
            "simulated GPUs hide no real one",
            found,
            "To use them: --simulate-gpus 0.",
        )
    to_do = (
        "Run nvidia-smi. A GPU that nvidia-smi lists but TensorFlow does not see is hidden by"
        " CUDA_VISIBLE_DEVICES, "
    )
    to_do += f"or CUDA libraries are missing ({install_cuda()}). {TRY_WITHOUT_GPU}"
    return required(len(gpus) >= gpu_count, "GPUs", expected, found, to_do)


def install_cuda() -> str:
    return f'pip install "tensorflow[and-cuda]=={tf.__version__}"'


def describe_gpu(gpu) -> str:
    details = tf.config.experimental.get_device_details(gpu)
    capability = ".".join(map(str, details.get("compute_capability", ()))) or "unknown"
    return f"{details.get('device_name', 'unnamed')} (compute capability {capability})"


def check_tensorflow(gpu_count: int) -> Check:
    build = tf.sysconfig.get_build_info()
    cuda = build["is_cuda_build"]
    expected = "a build with CUDA" if gpu_count else "any build: the settings name no real GPU"
    built = (
        f"with CUDA {build['cuda_version']} and cuDNN {build['cudnn_version']}"
        if cuda
        else "without CUDA"
    )
    to_do = f"Install a build with CUDA: {install_cuda()}."
    return required(
        cuda or not gpu_count, "TensorFlow", expected, f"{tf.__version__}, built {built}", to_do
    )


def check_memory_limits(placement: PlacementConfig) -> Iterator[Check]:
    """Check the memory limits against what the driver reports, where there are limits."""
    try:
        limits = limits_of(plan_routes(placement, len(tf.config.list_physical_devices("GPU"))))
    except PlacementError:  # section 2 reports it
        return
    if not limits:
        return
    name, expected = "memory limits", "they fit beside what CUDA and its libraries need"
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
        lines = [
            requirement
            for line in text.splitlines()
            if (requirement := line.partition("#")[0].strip())
        ]
    requirements = map(Requirement, lines)
    return [
        item for item in requirements if item.marker is None or item.marker.evaluate({"extra": ""})
    ]


def check_packages(requirements: Sequence[Requirement]) -> Check:
    """Compare the installed versions with the requirements."""
    faults = {
        requirement: fault for requirement in requirements if (fault := package_fault(requirement))
    }
    found = ", ".join(faults.values()) or f"{len(requirements)} of {len(requirements)} installed"
    to_do = "Install them: pip install " + " ".join(
        f'"{requirement.name}{requirement.specifier}"' for requirement in faults
    )
    return required(
        not faults,
        "packages",
        f"the {len(requirements)} packages that MyXTTS requires, in suitable versions",
        found,
        to_do,
    )


def package_fault(requirement: Requirement) -> str:
    """Return what is wrong with an installed package, or an empty string."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is missing"
    fits = requirement.specifier.contains(version, prereleases=True)
    return "" if fits else f"{requirement.name} is {version}, not {requirement.specifier}"


def check_disk(config: Config) -> Iterator[Check]:
    runs_dir = Path(config.run.runs_dir)
    folder = existing_parent(runs_dir)
    error = write_error(folder)
    found = f"{folder} is not writable: {error}" if error else f"{folder} is writable"
    yield required(
        not error, "run folder", f"{runs_dir} is writable", found, "Choose another --runs-dir."
    )
    free_mib = shutil.disk_usage(folder).free / 2**20
    expected = f"{MIN_FREE_MIB} MiB or more in {runs_dir}, plus the checkpoints (section 3)"
    to_do = "Free some disk space, or choose another --runs-dir."
    yield required(
        free_mib >= MIN_FREE_MIB, "free disk space", expected, f"{free_mib:,.0f} MiB", to_do
    )
    name, expected = "name of the run", "no run has this name, or --resume is given"
    try:
        RunFolder(runs_dir / config.run.run).check_not_existing(config.run.resume)
    except ConfigError as error:
        yield failed_by(error, name, expected)._replace(status="warning")
    else:
        yield recommended(True, name, expected, config.run.run)


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
        expected, found = (
            "they suit the GPUs of the run",
            "nothing was checked: the run has no real GPU",
        )
        yield recommended(True, "kernels, cuDNN and XLA", expected, found)
        return
    built, driver = (
        tf.sysconfig.get_build_info().get("cuda_compute_capabilities", []),
        driver_version(),
    )
    yield from (check_kernels(capability, built, driver) for capability in capabilities)
    yield check_cudnn(cudnn_version())
    yield from (check_xla(capability) for capability in capabilities)


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
    except PlacementError:  # section 2 reports it
        pass
    details = map(tf.config.experimental.get_device_details, gpus)
    return sorted(
        {detail["compute_capability"] for detail in details if "compute_capability" in detail}
    )


def check_kernels(capability: tuple[int, int], built: Sequence[str], driver: str | None) -> Check:
    """Check that TensorFlow has code for a GPU, and that the driver can compile it if it is PTX."""
    number = ".".join(map(str, capability))
    code = code_for(number, built)
    name, expected = (
        f"kernels for compute capability {number}",
        "native ones in this build of TensorFlow",
    )
    found = f"{code}; built for {', '.join(built) or 'no GPU'}"
    if code == "none":
        return required(
            False, name, expected, found, "Use another GPU, or a build of TensorFlow for this one."
        )
    if code == "PTX":
        to_do = (
            "The driver compiles the kernels at their first use, which may take many minutes; set "
        )
        to_do += "CUDA_CACHE_MAXSIZE=4294967296 to keep all of them. "
        if driver is not None and Version(driver) < Version(PTX_DRIVER):
            to_do += f"Driver {driver} is too old for this: install {PTX_DRIVER} or later. "
        to_do += f"If the kernels fail with CUDA_ERROR_INVALID_PTX, use {NVIDIA_CONTAINER}."
        return recommended(False, name, expected, found, to_do)
    return required(True, name, expected, found)


def check_cudnn(version: tuple[int, int, int] | None) -> Check:
    """Check the version of cuDNN against those with which XLA cannot compile convolutions."""
    name, expected = "cuDNN", "9.6 or later, as --compile xla fails on convolutions with 9.3 to 9.5"
    to_do = f'pip install "nvidia-cudnn-cu12{CUDNN_REQUIREMENT}", or do not use --compile xla.'
    found = (
        "unknown: TensorFlow has loaded no cuDNN"
        if version is None
        else ".".join(map(str, version))
    )
    return recommended(version is not None and version >= CUDNN_FIXED, name, expected, found, to_do)


def check_xla(capability: tuple[int, int]) -> Check:
    """Check that XLA of this TensorFlow generates code for a GPU."""
    name, expected = (
        "XLA",
        "XLA of this TensorFlow generates code for compute capabilities below 12.0",
    )
    to_do = f"Do not use --compile xla, or use {NVIDIA_CONTAINER}."
    found = f"compute capability {'.'.join(map(str, capability))}"
    return recommended(capability < UNSUPPORTED_CAPABILITY, name, expected, found, to_do)


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


def nvidia_smi(*arguments: str) -> str | None:
    """Return the output of nvidia-smi, or None if it is missing, fails or hangs."""
    return output_of(("nvidia-smi", *arguments), NVIDIA_SMI_S)
