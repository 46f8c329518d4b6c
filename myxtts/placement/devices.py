"""Configures TensorFlow's devices and thread pools, once, before TensorFlow starts.

Visible devices, memory growth, memory limits and numbers of threads cannot change after the first
tensor.
"""

import logging
import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from socket import gethostname
from tempfile import TemporaryFile

import tensorflow as tf

from myxtts.base.errors import ConfigError
from myxtts.base.machine import automatic_pools, core_count, is_pinned
from myxtts.base.tf_internals import has_cuda_gpus
from myxtts.config.schema import PlacementConfig
from myxtts.devicefeed.errors import PlacementError
from myxtts.devicefeed.internals import has_started
from myxtts.devicefeed.routes import Placement
from myxtts.placement.gpu_memory import (
    DriverUnavailable,
    ask_driver,
    check_limits,
    limits_of,
    read_memory,
)
from myxtts.placement.settings import hidden_gpus_warning, plan_routes

# LLVM ends the process: its PTX 8.5 does not support sm_120
# (github.com/tensorflow/tensorflow/issues/111958).
UNSUPPORTED_CAPABILITY = (12, 0)

XLA_FAULT = re.compile("(Unknown flag in|Couldn't interpret|Could not open|Flag parsing failed).*")
XLA_TRIAL_S = 60

log = logging.getLogger(__name__)


def gpu_count() -> int:
    """Return how many physical GPUs TensorFlow sees, without initialising them; raises ConfigError
    as `check_xla_flags`.
    """
    check_xla_flags()
    return len(tf.config.list_physical_devices("GPU"))


@cache
def check_xla_flags() -> None:
    """Raise ConfigError if TensorFlow would end this process, without an error, for flags of XLA
    that it does not know or cannot read, when it looks for devices or compiles a function.
    """
    names = [name for name in ("XLA_FLAGS", "TF_XLA_FLAGS") if os.environ.get(name)]
    given = " and ".join(f"{name}={os.environ[name][:200]}" for name in names)
    if not given or has_started():
        return
    with TemporaryFile() as output:
        # A fork, since another process would import TensorFlow for seconds.
        fork = os.fork()
        if fork == 0:
            os.dup2(output.fileno(), 2)
            signal.alarm(XLA_TRIAL_S)
            with suppress(Exception):
                tf.config.set_visible_devices([], "GPU")
                tf.function(tf.negative, jit_compile=True, autograph=False)(1.0)
            os._exit(0)
        os.waitpid(fork, 0)
        output.seek(0)
        if fault := XLA_FAULT.search(output.read().decode(errors="replace")):
            raise ConfigError(
                f"the environment has {given}, with which TensorFlow ends this process"
                f" ({fault[0].rstrip('.')}). Correct or unset {' and '.join(names)}."
            )


def gpu_names(gpus: Sequence[int]) -> list[str]:
    """Return names of GPUs that no other GPU has, on whatever host; none if they are unknown."""
    try:
        return ask_driver(gpus, lambda nvml, handle: str(nvml.nvmlDeviceGetUUID(handle)))
    except DriverUnavailable:
        # A control group may number the GPUs of each process from 0. NCCL compares them, too.
        if has_cuda_gpus():
            return []
        return [f"GPU {gpu} of {gethostname()}" for gpu in gpus]


# The order matters, since most calls fail once TensorFlow has started: flags of XLA are tried in a
# fork, memory limits are compared with what is free, then threads and devices are set. A simulated
# placement hides all GPUs and splits the CPU into logical devices. At the end, soft placement is
# turned off, so that an operation without a kernel is an error and no silent copy.
def configure(placement: Placement, small_operations: bool = False, processes: int = 1) -> None:
    """Make the placement's devices visible, with growth or limits; size the thread pools.

    TensorFlow never moves an operation: one that its device cannot run, or a device that does not
    exist, is an error. Raises PlacementError if TensorFlow has already started with other devices,
    or memory limits do not fit, and ConfigError for flags of XLA that TensorFlow rejects.

    So many `processes` share the cores of this host, unless they are pinned. For small operations
    see `automatic_pools`.
    """
    check_xla_flags()
    if placement.simulated and (visible := gpu_count()):
        simulated = len({device.physical for device in placement.devices})
        log.warning("%s", hidden_gpus_warning(simulated, visible))
    limits = limits_of(placement)
    # Once started, this process holds memory itself.
    if limits and not has_started():
        # Without NVML nothing can be compared.
        with suppress(DriverUnavailable):
            check_limits(limits, read_memory(tuple(limits)))
    cores = core_count()
    if not is_pinned():
        cores = max(1, cores // processes)
    # TensorFlow raises ValueError for memory growth after limits, else RuntimeError.
    try:
        automatic = automatic_pools(placement.on_gpu, cores, small_operations)
        for pool, size in zip(("intra_op", "inter_op"), automatic, strict=True):
            _configure_threads(pool, getattr(placement, f"{pool}_threads"), size)
        if placement.on_gpu:
            _configure_gpus(placement)
        else:
            tf.config.set_visible_devices([], "GPU")
            parts = [tf.config.LogicalDeviceConfiguration() for _ in placement.devices]
            cpu = tf.config.list_physical_devices("CPU")[0]
            tf.config.set_logical_device_configuration(cpu, parts)
    except (RuntimeError, ValueError) as error:
        raise PlacementError(
            f"the devices of this run ({placement.name}) cannot be configured: TensorFlow has"
            f" already started: {error}. Restart the process or notebook kernel."
        ) from error
    tf.config.experimental.set_device_policy("silent")
    tf.config.set_soft_device_placement(False)
    for line in describe(placement):
        log.info("%s", line)
    log.info("threads        %s", describe_threads())


def configure_default() -> Placement:
    """Configure the default placement, GPU 0 or else the CPU, and return it."""
    placement = plan_routes(PlacementConfig(), gpu_count())
    configure(placement)
    return placement


def _configure_threads(pool: str, requested: int | str, automatic: int | None) -> None:
    set_size = getattr(tf.config.threading, f"set_{pool}_parallelism_threads")
    if requested != "auto":
        set_size(requested)
    else:
        # TensorFlow may have started with other sizes.
        with suppress(RuntimeError):
            set_size(automatic)


def _configure_gpus(placement: Placement) -> None:
    physical = tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices([physical[i] for i in placement.gpus], "GPU")
    for i in placement.gpus:
        limits = [device.memory_mib for device in placement.devices if device.physical == i]
        # A single device without a limit shares the GPU with others and grows; limits make parts.
        if limits == [None]:
            tf.config.experimental.set_memory_growth(physical[i], True)
        else:
            logical = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits]
            tf.config.set_logical_device_configuration(physical[i], logical)


def describe_threads() -> str:
    """Describe the configured thread pools for the log."""
    intra_op = tf.config.threading.get_intra_op_parallelism_threads() or "TensorFlow's default"
    inter_op = tf.config.threading.get_inter_op_parallelism_threads() or "TensorFlow's default"
    return f"intra-op {intra_op}, inter-op {inter_op}"


def describe(placement: Placement) -> list[str]:
    """Describe the placement for the log: which GPU is which device, limits, routes."""
    lines = [f"placement      {placement.name}"]
    if placement.simulated:
        lines[0] += " (GPUs simulated on the CPU)"
    for device in placement.devices:
        source = "CPU" if device.physical is None else f"GPU {device.physical}"
        memory = "memory grows as needed"
        if device.memory_mib is not None:
            memory = f"at most {device.memory_mib} MiB"
            if placement.simulated:
                memory += " (not applied: the device is simulated)"
        if placement.simulated:
            source = f"simulated {source}"
        lines.append(f"  device       {source} is {device.name}, {memory}")
    for route in placement.routes:
        turns = " and ".join(route.data_devices)
        if route.further_data:
            turns += " in turn"
        if route.data_shares:
            turns += f", with shares {' : '.join(f'{share:g}' for share in route.data_shares)}"
        lines.append(f"  route        batches made on {turns}, trained on {route.model}")
    if placement.observer:
        what = "validation, samples and evaluation"
        lines.append(f"  observer     {what} on {placement.observer}, during training")
    return lines


@cache
def xla_failure(device: str, whole_step: bool = False) -> str | None:
    """Compile and run a small function on a device; return the reason if that fails.

    A GPU that runs TensorFlow's kernels may lack what XLA needs: a code generator for its compute
    capability, ptxas or libdevice of the CUDA toolkit, or a cuDNN whose convolutions XLA can call.

    `whole_step` tries also what a step has beyond a loop: a convolution with bias, which XLA fuses,
    with its gradient, a matrix product, and an exponential function, which needs libdevice.
    """
    gpus = tf.config.get_visible_devices("GPU") if "GPU:" in device else []
    for details in map(tf.config.experimental.get_device_details, gpus):
        capability = details.get("compute_capability", (0, 0))
        if capability >= UNSUPPORTED_CAPABILITY:
            number = ".".join(map(str, capability))
            version = f"XLA of TensorFlow {tf.__version__}"
            return f"{version} generates no code for compute capability {number}"
    traced = _step_operations if whole_step else _loop
    try:
        with tf.device(device):
            tf.function(traced, jit_compile=True, autograph=False)(tf.ones([1, 8, 8])).numpy()
    except tf.errors.OpError as error:
        return f"{type(error).__name__}: {error.message.splitlines()[0].rstrip('.')}"
    return None


def _loop(x):
    return tf.while_loop(
        lambda i, _: i < 4, lambda i, x: (i + 1, tf.maximum(x, 1.0) + x[:, ::-1]), (0, x)
    )[1]


def _step_operations(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        convolution = tf.nn.bias_add(tf.nn.conv1d(x, tf.ones([5, 8, 8]), 1, "SAME"), tf.ones([8]))
        y = tf.exp(convolution - tf.matmul(x, x))
    return _loop(tape.gradient(y, x))
