"""Part of section 1: whether this TensorFlow, cuDNN, XLA and the driver suit the GPUs of a run."""

from collections.abc import Iterator, Sequence

import tensorflow as tf
from packaging.version import Version

from myxtts.config.schema import PlacementConfig
from myxtts.errors import PlacementError
from myxtts.placement.devices import UNSUPPORTED_CAPABILITY
from myxtts.placement.routes import plan_routes
from myxtts.preflight import nvidia
from myxtts.preflight.checks import Check, recommended, required

PTX_DRIVER = "555.42.02"  # the first that reads the PTX of CUDA 12.5 (CUDA 12.5 release notes)
NVIDIA_CONTAINER = "NVIDIA's container of TensorFlow (nvcr.io/nvidia/tensorflow)"
# XLA of TensorFlow 2.21 finds no engine for a convolution with bias in cuDNN 9.3
# (github.com/calad0i/HGQ2/issues/14) and 9.5.1, but one in 9.24
# (github.com/aws/deep-learning-containers/pull/6418). 9.6 to 9.23 were not tried there.
CUDNN_FIXED = (9, 6, 0)
CUDNN_REQUIREMENT = ">=9.24,<10"  # as in requirements-gpu.txt


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
        nvidia.driver_version(),
    )
    yield from (check_kernels(capability, built, driver) for capability in capabilities)
    yield check_cudnn(nvidia.cudnn_version())
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
    code = nvidia.code_for(number, built)
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
