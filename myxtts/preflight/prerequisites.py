"""Section 1: what must be there before TensorFlow starts its devices."""

import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import tensorflow as tf
from packaging.requirements import Requirement

from myxtts.config.schema import Config, PlacementConfig
from myxtts.errors import ConfigError
from myxtts.preflight import nvidia
from myxtts.preflight.checks import Check, check, refused, remark
from myxtts.training.run_folder import RunFolder

REQUIREMENTS = Path(__file__).parents[2] / "requirements.txt"
LEAST_FREE_MIB = 1024  # logs, samples and cached manifests; checkpoints are counted where the model is known
NO_GPU = "To try the pipeline without a GPU: --simulate-gpus 2."


def check_prerequisites(config: Config) -> Iterator[Check]:
    """Driver, GPUs, TensorFlow, packages, disk. Starts no device."""
    needed = needed_gpus(config.placement)
    yield check_driver(needed)
    yield check_gpus(needed)
    yield check_tensorflow(needed)
    yield check_packages(REQUIREMENTS)
    yield from check_disk(config)


def needed_gpus(placement: PlacementConfig) -> int:
    """How many physical GPUs must be there; 0 where they are simulated or none is asked for."""
    asked = [gpu for gpu in (placement.data_gpu, placement.model_gpu, *placement.model_gpus) if gpu is not None]
    return 0 if placement.simulate_gpus or not asked else max(asked) + 1


def check_driver(needed: int) -> Check:
    version = nvidia.driver_version()
    expected = "a driver of NVIDIA's" if needed else "none: no real GPU is asked for"
    do = f"Install NVIDIA's driver, and restart. {NO_GPU}"
    return check(version is not None or not needed, "driver", expected, version or "no NVIDIA driver", do)


def check_gpus(needed: int) -> Check:
    found = [describe_gpu(gpu) for gpu in tf.config.list_physical_devices("GPU")]
    expected = f"at least {needed} that TensorFlow sees" if needed else "none: no real GPU is asked for"
    words = "; ".join(f"{number}: {name}" for number, name in enumerate(found)) or "TensorFlow sees no GPU"
    do = "Run nvidia-smi: a GPU that it lists and TensorFlow does not see lacks CUDA libraries (pip install -r "
    do += f"requirements-gpu.txt) or is hidden by CUDA_VISIBLE_DEVICES. {NO_GPU}"
    return check(len(found) >= needed, "GPUs", expected, words, do)


def describe_gpu(gpu) -> str:
    details = tf.config.experimental.get_device_details(gpu)
    capability = ".".join(map(str, details.get("compute_capability", ()))) or "unknown"
    return f"{details.get('device_name', 'unnamed')} (compute capability {capability})"


def check_tensorflow(needed: int) -> Check:
    build = tf.sysconfig.get_build_info()
    cuda = build["is_cuda_build"]
    expected = "built with CUDA" if needed else "any build: no real GPU is asked for"
    built = f"for CUDA {build['cuda_version']}, cuDNN {build['cudnn_version']}" if cuda else "without CUDA"
    do = "Install the build with CUDA: pip install -r requirements-gpu.txt."
    return check(cuda or not needed, "TensorFlow", expected, f"{tf.__version__}, built {built}", do)


def check_packages(requirements: Path) -> Check:
    """Installed versions against the one list of what is required."""
    wanted = [Requirement(text) for text in requirement_lines(requirements)]
    faults = [fault for one in wanted if (fault := fault_of(one))]
    found = ", ".join(faults) or f"{len(wanted)} of {len(wanted)}"
    do = f"Install them: pip install -r {requirements.name}."
    return check(not faults, "packages", f"the {len(wanted)} of {requirements.name}", found, do)


def requirement_lines(requirements: Path) -> list[str]:
    bare = (line.partition("#")[0].strip() for line in requirements.read_text(encoding="utf-8").splitlines())
    return [line for line in bare if line]


def fault_of(requirement: Requirement) -> str:
    """What is wrong with an installed package; empty where nothing is."""
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is missing"
    fits = requirement.specifier.contains(version, prereleases=True)
    return "" if fits else f"{requirement.name} is {version}, not {requirement.specifier}"


def check_disk(config: Config) -> Iterator[Check]:
    runs = Path(config.run.runs_dir)
    there = next(folder for folder in (runs.resolve(), *runs.resolve().parents) if folder.exists())
    fault = fault_of_writing(there)
    found = f"{there} {'cannot' if fault else 'can'} be written{fault}"
    yield check(not fault, "run folder", f"{runs} can be written", found, "Choose another --runs-dir.")
    free_mib = shutil.disk_usage(there).free / 2**20
    expected = f"{LEAST_FREE_MIB} MiB or more under {runs}, and the checkpoints (section 3)"
    do = "Make room there, or choose another --runs-dir."
    yield check(free_mib >= LEAST_FREE_MIB, "free disk", expected, f"{free_mib:,.0f} MiB", do)
    try:
        RunFolder(runs / config.run.run).check_not_existing(config.run.resume)
    except ConfigError as error:
        made = refused("name of the run", "no run of that name, or --resume", error)
        yield made._replace(state="unknown")
    else:
        yield remark(True, "name of the run", "no run of that name, or --resume", config.run.run)


def fault_of_writing(folder: Path) -> str:
    """Why nothing can be written into a folder, tried out; empty where something can."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f": {error.strerror}"
