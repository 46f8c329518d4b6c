"""Section 1: driver, GPUs, CUDA libraries, packages and disk, before TensorFlow starts devices."""

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import tensorflow as tf
from packaging.requirements import Requirement
from packaging.version import Version

from myxtts.base.processes import NVIDIA_SMI_S, output_of
from myxtts.base.tf_internals import has_cuda_gpus
from myxtts.config.schema import Config
from myxtts.devicefeed.errors import PlacementError
from myxtts.devicefeed.routes import Placement
from myxtts.placement.devices import check_xla_flags
from myxtts.placement.settings import named_gpus, plan_routes
from myxtts.trial.preflight.checks import Check, recommended, required

# A checkout that is not installed has no metadata of a package.
REQUIREMENTS_FILE = Path(__file__).parents[3] / "requirements.txt"

NO_DRIVER_NEEDED = "none is needed: the settings name no GPU of NVIDIA"
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
CUDNN_FIXED = "9.6"

# As in pyproject.toml, with which a test compares it.
CUDNN_REQUIREMENT = ">=9.24,<10"


def check_prerequisites(config: Config) -> Iterator[Check]:
    """Check driver, GPUs, TensorFlow, packages and disk without starting a device."""
    check_xla_flags()
    needed = max(named_gpus(config.placement), default=-1) + 1
    if config.placement.simulate_gpus:
        needed = 0
    yield check_driver(needed if has_cuda_gpus() else 0)
    yield check_gpus(needed)
    build = tf.sysconfig.get_build_info()
    built = "without CUDA"
    if build["is_cuda_build"]:
        built = f"with CUDA {build['cuda_version']} and cuDNN {build['cudnn_version']}"
    yield required(
        build["is_cuda_build"] or not needed,
        "TensorFlow",
        "a build with CUDA" if needed else "any build: the settings name no real GPU",
        f"{tf.__version__}, built {built}",
        f"Install a build with CUDA: {INSTALL_CUDA}.",
    )
    # Section 2 reports a placement that is impossible.
    with suppress(PlacementError):
        gpus = len(tf.config.list_physical_devices("GPU"))
        yield from check_gpu_software(plan_routes(config.placement, gpus))
    yield check_packages(package_requirements())
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


def check_driver(needed: int) -> Check:
    """Check the driver, where the settings need so many GPUs."""
    version = driver_version()
    is_suitable = version is not None and Version(version) >= Version(MIN_DRIVER)
    return required(
        is_suitable or not needed,
        "driver",
        f"an NVIDIA driver, {MIN_DRIVER} or later" if needed else NO_DRIVER_NEEDED,
        version or "no NVIDIA driver",
        "Install a current NVIDIA driver and restart, or try without a GPU: --simulate-gpus 2.",
    )


def check_gpus(needed: int) -> Check:
    gpus = []
    for number, gpu in enumerate(tf.config.list_physical_devices("GPU")):
        details = tf.config.experimental.get_device_details(gpu)
        capability = ".".join(map(str, details.get("compute_capability", ["unknown"])))
        name = details.get("device_name", "unnamed")
        gpus.append(f"{number}: {name} (compute capability {capability})")
    to_do = f"Install the CUDA libraries: {INSTALL_CUDA}."
    if gpus:
        to_do = "To make batches and train on one GPU: --data-gpu 0 --model-gpu 0."
    return required(
        len(gpus) >= needed,
        "GPUs",
        f"TensorFlow sees {needed} GPUs or more" if needed else NO_GPU_NEEDED,
        "; ".join(gpus) or "TensorFlow sees no GPU",
        f"{to_do} If nvidia-smi lists more, unset CUDA_VISIBLE_DEVICES. To try without them:"
        f" --simulate-gpus {needed}.",
    )


def check_gpu_software(placement: Placement) -> Iterator[Check]:
    """Check whether this build of TensorFlow and cuDNN suit the GPUs of a placement."""
    capabilities = used_capabilities(placement)
    if not capabilities:
        found = "nothing was checked: the run has no real GPU"
        yield required(True, "kernels and cuDNN", "they suit the GPUs of the run", found)
        return
    built = tf.sysconfig.get_build_info().get("cuda_compute_capabilities", [])
    yield from (check_kernels(capability, built) for capability in capabilities)
    version = "unknown: the package nvidia-cudnn-cu12 is not installed"
    with suppress(metadata.PackageNotFoundError):
        version = metadata.version("nvidia-cudnn-cu12")
    yield recommended(
        version[0].isdigit() and Version(version) >= Version(CUDNN_FIXED),
        "cuDNN",
        f"{CUDNN_FIXED} or later, as --compile xla fails on convolutions with 9.3 to 9.5",
        version,
        f'pip install "nvidia-cudnn-cu12{CUDNN_REQUIREMENT}", or do not use --compile xla.',
    )


def used_capabilities(placement: Placement) -> list[tuple[int, int]]:
    """Return the compute capabilities of the real GPUs of a placement."""
    capabilities = set()
    gpus = tf.config.list_physical_devices("GPU")
    for number in placement.gpus:
        details = tf.config.experimental.get_device_details(gpus[number])
        capabilities.add(details.get("compute_capability"))
    return sorted(capabilities - {None})


def check_kernels(capability: tuple[int, int], built: Sequence[str]) -> Check:
    """Check that TensorFlow has code for a GPU."""
    name = f"kernels for compute capability {'.'.join(map(str, capability))}"
    expected = "native ones in this build of TensorFlow"
    code = code_for(capability, built)
    found = f"{code}; built for {', '.join(built) or 'no GPU'}"
    if code == "PTX":
        to_do = (
            "The driver compiles the kernels at their first use, which may take many minutes; set"
            f" CUDA_CACHE_MAXSIZE=4294967296 to keep all of them. It must be {PTX_DRIVER} or later."
            f" If the kernels fail with CUDA_ERROR_INVALID_PTX, use {NVIDIA_CONTAINER}."
        )
        return recommended(False, name, expected, found, to_do)
    to_do = "Use another GPU, or a build of TensorFlow for this one."
    return required(code == "native", name, expected, found, to_do)


def code_for(capability: tuple[int, int], built: Sequence[str]) -> str:
    """Return what a build of TensorFlow has for a card: native code, PTX for the driver, or none.

    Native code runs on cards with the same major number and the same or a higher minor one; PTX on
    all of the same or a higher capability (CUDA C++ Programming Guide, "Application
    Compatibility"). `built` is such as sm_80 (native) and compute_90 (PTX, and native for 9.0).
    """
    major, minor = capability
    code = "none"
    for name in built:
        kind, _, number = name.partition("_")
        target = divmod(int(number.rstrip("af")), 10)
        if target[0] == major and target[1] <= minor:
            return "native"
        if kind == "compute" and target <= capability:
            code = "PTX"
    return code


def package_requirements() -> list[Requirement]:
    """Return what training requires, by the installed package or a checkout's requirements.txt."""
    try:
        lines = metadata.requires("myxtts") or []
    except metadata.PackageNotFoundError:
        text = REQUIREMENTS_FILE.read_text(encoding="utf-8")
        lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    requirements = [Requirement(line) for line in lines if line]
    extras = ("", "train", "text")
    return [
        item
        for item in requirements
        if item.name != "myxtts"
        and (item.marker is None or any(item.marker.evaluate({"extra": each}) for each in extras))
    ]


def check_packages(requirements: Sequence[Requirement]) -> Check:
    """Compare the installed versions with the requirements."""
    faults = {}
    for requirement in requirements:
        version = "missing"
        with suppress(metadata.PackageNotFoundError):
            version = metadata.version(requirement.name)
        # A nightly build of TensorFlow is newer than the release that it precedes.
        if version == "missing" or not requirement.specifier.contains(version, prereleases=True):
            faults[f"{requirement.name}{requirement.specifier}"] = version
    return required(
        not faults,
        "packages",
        f"the {len(requirements)} packages that MyXTTS requires, in suitable versions",
        ", ".join(f"{text} is {version}" for text, version in faults.items()) or "all installed",
        "Install them: pip install " + " ".join(f'"{text}"' for text in faults),
    )


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


def driver_version() -> str | None:
    """Return the version of the loaded driver, or None. WSL has no /proc entry, but nvidia-smi."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader") or ""
    version = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", text)
    return version[0] if version else None


def nvidia_smi(*arguments: str) -> str | None:
    """Return the output of nvidia-smi, or None if it is missing, fails or hangs."""
    return output_of(("nvidia-smi", *arguments), NVIDIA_SMI_S)
