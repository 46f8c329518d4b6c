"""Virtual GPUs: TensorFlow's own GPU runtime on a machine without a GPU.

A plug-in of TensorFlow (PluggableDevice) makes devices of type GPU. TensorFlow's placer, memory
rules, BFC allocator, streams, events, copies and rendezvous run as on a GPU, and each kernel
computes what the CPU's kernel of the same operation computes:

- `device.cc`: memory, streams and events, by the C API of StreamExecutor;
- `kernels.cc`: kernels, registered for what the CUDA build of TensorFlow registers;
- `assignments.cc`: assignments to variables; `ctc.cc`: the CTC loss as cuDNN computes it;
- `costs.cc`: how long work lasts, if a table of costs is given.

What they lack of a GPU: XLA, cuDNN's recurrent layers, NCCL, GPUs split by memory limits
(TensorFlow ignores them for plug-ins), convolutions in NCHW, and the memory that kernels use while
they run.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from myxtts.base.machine import available_memory_mib

FOLDER = Path(__file__).parent
PREFIX = "VIRTUAL_GPU_"
# As `tf.sysconfig.get_compile_flags()` has them, whose import takes seconds. -w: TensorFlow's
# headers have thousands of warnings.
FLAGS = "-std=c++17 -O2 -fPIC -w -D_GLIBCXX_USE_CXX11_ABI=1 -DEIGEN_MAX_ALIGN_BYTES=64"


class Unavailable(Exception):
    """There can be no virtual GPUs here."""


def unavailable() -> str:
    """Return why there can be no virtual GPUs on this machine; "" if they can be."""
    if not sys.platform.startswith("linux"):
        return f"virtual GPUs need Linux, and this is {sys.platform}"
    if shutil.which("g++") is None:
        return "virtual GPUs need g++, which is not in PATH; install it (apt install g++)"
    return ""


def library() -> Path:
    """Return the plug-in for the installed TensorFlow; compile it if the cache has none.

    Raises Unavailable if that fails.
    """
    if reason := unavailable():
        raise Unavailable(reason)
    sources = sorted(FOLDER.glob("*.cc"))
    content = b"".join(path.read_bytes() for path in sorted(FOLDER.glob("*.[ch]*")))
    digest = hashlib.sha256(content + FLAGS.encode()).hexdigest()[:16]
    version = importlib.metadata.version("tensorflow")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "myxtts")
    compiled = cache / f"virtual_gpu-{version}-{digest}.so"
    if not compiled.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            path = Path(folder, compiled.name)
            _compile(sources, path)
            # Other processes find all of it or nothing.
            path.replace(compiled)
    return compiled


def _compile(sources: list[Path], path: Path) -> None:
    tensorflow = importlib.util.find_spec("tensorflow").submodule_search_locations[0]
    objects = [path.with_name(source.stem + ".o") for source in sources]
    commands = []
    for source, compiled in zip(sources, objects, strict=True):
        include = f"-I{tensorflow}/include"
        commands.append(["g++", *FLAGS.split(), include, "-c", str(source), "-o", str(compiled)])
    _run_at_once(commands)
    libraries = [f"-L{tensorflow}", "-l:libtensorflow_framework.so.2"]
    _run_at_once([["g++", "-shared", *map(str, objects), "-o", str(path), *libraries]])


def _run_at_once(commands: list[list[str]]) -> None:
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, stderr=pipe, text=True) for command in commands]
    errors = [process.communicate()[1] for process in processes]
    for process, error in zip(processes, errors, strict=True):
        if process.returncode:
            last = "\n".join(error.splitlines()[-20:])
            raise Unavailable(f"g++ failed (exit code {process.returncode}):\n{last}")


def environment(gpus: int = 2, **settings: object) -> dict[str, str]:
    """Return the environment of a process that has virtual GPUs.

    `settings` are those of the plug-in, such as `chaos=1` or `memory_mib=(2048, 1024)`; a value of
    None is not set. Raises Unavailable as `library` does, and if the host has less memory than all
    GPUs get: a GPU with a memory limit takes its memory at once.
    """
    if sizes := settings.get("memory_mib"):
        sizes = [sizes] if isinstance(sizes, int) else [*sizes]
        sizes = [*sizes, *sizes[-1:] * gpus][:gpus]
        available = int(available_memory_mib())
        if sum(sizes) > available:
            raise Unavailable(
                f"{gpus} GPUs with {sum(sizes):,} MiB were requested (--memory-mib), but this host"
                f" has {available:,} MiB available. Give --memory-mib {available // gpus} or less."
            )
    environ = dict(os.environ)
    environ["TF_PLUGGABLE_DEVICE_LIBRARY_PATH"] = str(library())
    # Real GPUs would be devices as well.
    environ["CUDA_VISIBLE_DEVICES"] = ""
    # TensorFlow's CUDA build asks CUDA about each device, and logs each time as an error that there
    # is no CUDA.
    environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return environ | variables({"count": gpus, **settings})


def variables(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the environment variables of some settings of the plug-in."""
    texts = {}
    for name, value in settings.items():
        if isinstance(value, (tuple, list)):
            value = " ".join(map(str, value))
        if value is not None and value != "":
            texts[PREFIX + name.upper()] = str(int(value) if isinstance(value, bool) else value)
    return texts
