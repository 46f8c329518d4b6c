"""Section 1: driver, GPUs, packages and disk, before TensorFlow initialises its devices."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import tensorflow as tf
from packaging.requirements import Requirement
from packaging.version import Version

from myxtts.config.schema import Config, PlacementConfig
from myxtts.errors import ConfigError, PlacementError
from myxtts.placement.gpu_memory import DriverUnavailable, check_limits, limits_of, read_memory
from myxtts.placement.routes import named_gpus, plan_routes
from myxtts.preflight import nvidia
from myxtts.preflight.checks import Check, failed_by, recommended, required
from myxtts.preflight.gpu_software import check_gpu_software
from myxtts.training.runs import RunFolder

REQUIREMENTS_FILE = Path(__file__).parents[2] / "requirements.txt"  # in a checkout
MIN_FREE_MIB = 1024  # for logs, samples and cached manifests; section 3 counts the checkpoints
TRY_WITHOUT_GPU = "To try the pipeline without a GPU: --simulate-gpus 2."
NO_GPU_NEEDED = "none is needed: the settings name no real GPU"
MIN_DRIVER = "525.60.13"  # for CUDA 12 (CUDA 12.5 release notes, minor version compatibility)


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
    version = nvidia.driver_version()
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
