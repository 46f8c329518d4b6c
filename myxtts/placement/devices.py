"""Configures TensorFlow's devices and thread pools, once, before TensorFlow starts.

Visible devices, memory growth, memory limits and numbers of threads cannot change after the first
tensor.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

import tensorflow as tf

from myxtts.config.schema import PlacementConfig
from myxtts.errors import PlacementError
from myxtts.machine import ThreadPools, automatic_pools, core_count, is_pinned
from myxtts.placement.gpu_memory import DriverUnavailable, check_limits, limits_of, read_memory
from myxtts.placement.routes import Placement, hidden_gpus_warning, plan_routes
from myxtts.tf_internals import has_started

# LLVM ends the process: its PTX 8.5 does not support sm_120
# (github.com/tensorflow/tensorflow/issues/111958).
UNSUPPORTED_CAPABILITY = (12, 0)

log = logging.getLogger(__name__)


def gpu_count() -> int:
    """Return how many physical GPUs TensorFlow sees, without initialising them."""
    return len(tf.config.list_physical_devices("GPU"))


def gpu_names() -> list[str]:
    """Return the name of each physical GPU that TensorFlow sees, such as NVIDIA A100-SXM4-80GB."""
    gpus = tf.config.list_physical_devices("GPU")
    return [
        tf.config.experimental.get_device_details(gpu).get("device_name", "unnamed") for gpu in gpus
    ]


def configure(placement: Placement, small_operations: bool = False, processes: int = 1) -> None:
    """Make the placement's devices visible, with growth or limits; size the thread pools.

    TensorFlow never moves an operation: one that its device cannot run, or a device that does not
    exist, is an error.

    Args:
        placement: as `plan_routes` returns it.
        small_operations: whether most operations are small, see `automatic_pools`.
        processes: number of processes that share the cores of this host, unless they are pinned.

    Raises:
        PlacementError: TensorFlow has already started with other devices, or memory limits do not
            fit.
    """
    if placement.simulated and (names := gpu_names()):
        log.warning("%s", simulation_warning(placement, names))
    limits = limits_of(placement)
    # Then, this process holds memory itself.
    if limits and not has_started():
        with suppress(DriverUnavailable):  # which the preflight reports
            check_limits(limits, read_memory(tuple(limits)))
    cores = core_count() if is_pinned() else max(1, core_count() // processes)
    # ValueError: memory growth after limits. RuntimeError: all others.
    try:
        _configure_threads(placement, automatic_pools(placement.on_gpu, cores, small_operations))
        if placement.on_gpu:
            _configure_gpus(placement)
        else:
            _configure_cpu(placement)
    except (RuntimeError, ValueError) as error:
        raise PlacementError(
            f"the devices of this run ({placement.name}) cannot be configured: TensorFlow has"
            f" already started: {error}. Configure devices before the first tensor; restart the"
            " process or notebook kernel."
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


def _configure_threads(placement: Placement, automatic: ThreadPools) -> None:
    """Set the thread pools; `auto` keeps those of a TensorFlow that has already started."""
    threading = tf.config.threading
    for requested, size, set_size in (
        (
            placement.intra_op_threads,
            automatic.intra_op,
            threading.set_intra_op_parallelism_threads,
        ),
        (
            placement.inter_op_threads,
            automatic.inter_op,
            threading.set_inter_op_parallelism_threads,
        ),
    ):
        if requested != "auto":
            set_size(requested)
        else:
            # TensorFlow may have started with other sizes.
            with suppress(RuntimeError):
                set_size(size)


def _configure_gpus(placement: Placement) -> None:
    physical = tf.config.list_physical_devices("GPU")
    used = sorted({device.physical for device in placement.devices if device.physical is not None})
    tf.config.set_visible_devices([physical[i] for i in used], "GPU")
    for i in used:
        limits = [device.memory_mib for device in placement.devices if device.physical == i]
        if limits == [None]:
            tf.config.experimental.set_memory_growth(physical[i], True)
        else:
            logical = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for limit in limits]
            tf.config.set_logical_device_configuration(physical[i], logical)


def _configure_cpu(placement: Placement) -> None:
    """Split the CPU into a logical device for each simulated GPU; hide all GPUs."""
    tf.config.set_visible_devices([], "GPU")
    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration() for _ in placement.devices]
    tf.config.set_logical_device_configuration(cpu, logical)


def synchronize(tensor: tf.Tensor) -> None:
    """Wait until the tensor's device has computed it and all earlier work, by reading one element.

    Does not work for int32, which TensorFlow keeps in host memory, ready before the GPU has done
    anything.
    """
    with tf.device(tensor.device):
        tf.reshape(tensor, [-1])[:1].numpy()


def simulation_warning(placement: Placement, names: Sequence[str]) -> str:
    """Return the warning that simulated GPUs hide real ones, with the flags that use the real ones.

    Args:
        names: of the real GPUs.
    """
    simulated = len({device.physical for device in placement.devices})
    kinds = ", ".join(f"{count} x {name}" for name, count in Counter(names).items())
    noun = "GPUs" if len(names) > 1 else "GPU"
    found = f"TensorFlow sees {len(names)} {noun} ({kinds})"
    return hidden_gpus_warning(simulated, found, _flags_of_real_gpus(placement, len(names)))


def _flags_of_real_gpus(placement: Placement, count: int) -> str:
    names = {route.model for route in placement.routes}
    for route in placement.routes:
        names.update(route.data_devices)
    if max(device.physical or 0 for device in placement.devices if device.name in names) < count:
        return "--simulate-gpus 0"
    if len(placement.routes) == 1:
        return f"--simulate-gpus 0 --data-gpu 0 --model-gpu {min(1, count - 1)}"
    return f"--simulate-gpus 0, with GPUs from 0 to {count - 1} in --data-gpu and --model-gpus"


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
        source = f"simulated {source}" if placement.simulated else source
        memory = (
            "memory grows as needed"
            if device.memory_mib is None
            else f"at most {device.memory_mib} MiB"
        )
        if placement.simulated and device.memory_mib is not None:
            memory += " (not applied: the device is simulated)"
        lines.append(f"  device       {source} is {device.name}, {memory}")
    for route in placement.routes:
        turns = f"{' and '.join(route.data_devices)} in turn" if route.further_data else route.data
        lines.append(f"  route        batches made on {turns}, trained on {route.model}")
    if placement.observer:
        lines.append(
            f"  observer     validation, samples and evaluation on {placement.observer}, during"
            " training"
        )
    return lines


@cache
def xla_failure(device: str, whole_step: bool = False) -> str | None:
    """Compile and run a small function on a device; return the reason if that fails.

    A GPU that runs TensorFlow's kernels may lack what XLA needs: a code generator for its compute
    capability, ptxas or libdevice of the CUDA toolkit, or a cuDNN whose convolutions XLA can call.
    The outcome is kept for the process.

    Args:
        whole_step: try also what a training step has beyond a loop: a convolution with bias, which
            XLA fuses, with its gradient, a matrix product, and an exponential function, which needs
            libdevice.
    """
    if reason := _unsupported_gpu(device):
        return reason
    function = tf.function(
        _step_operations if whole_step else _loop, jit_compile=True, autograph=False
    )
    try:
        with tf.device(device):
            function(tf.ones([1, 8, 8])).numpy()
    except tf.errors.OpError as error:
        return f"{type(error).__name__}: {error.message.splitlines()[0].rstrip('.')}"
    return None


def _unsupported_gpu(device: str) -> str | None:
    """Return why XLA must not be tried: without a target, LLVM ends the process."""
    gpus = tf.config.get_visible_devices("GPU") if "GPU:" in device else []
    details = map(tf.config.experimental.get_device_details, gpus)
    capability = max(
        (detail.get("compute_capability", (0, 0)) for detail in details), default=(0, 0)
    )
    if capability < UNSUPPORTED_CAPABILITY:
        return None
    number = ".".join(map(str, capability))
    return f"XLA of TensorFlow {tf.__version__} generates no code for compute capability {number}"


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
