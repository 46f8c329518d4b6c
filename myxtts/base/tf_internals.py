"""Every use of a private or deprecated TensorFlow or Keras API, one function each, with the reason.

requirements.txt caps TensorFlow's minor version because of this module: check each function before
raising the cap.

The package also relies on public APIs that are marked experimental and may change between minor
versions: `tf.config.experimental` (placement, preflight, training.setup, portable_ops),
`tf.data.experimental` (data.reading), `CommunicationOptions`
(distributed.worker_group), `Strategy.experimental_*` (placement.replicas), `stateless_fold_in`
(portable_ops) and `experimental_get_tracing_count` (training.step).
"""

import ctypes
from collections.abc import Sequence

import keras
import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels, op_def_registry

# Parameters of mallopt(3), and values: the most that glibc takes for the first.
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
MMAP_THRESHOLD_BYTES, TRIM_THRESHOLD_BYTES = 32 << 20, 256 << 20


def has_started() -> bool:
    """Whether TensorFlow has initialised its devices; the public functions that tell start it."""
    return context.context()._context_handle is not None


def reuse_freed_memory() -> None:
    """Let tensors take the memory that others freed; call it after each `prefetch_to_device`.

    The first kernel of GeneratorDataset, which that makes, has the C library map all memory of 128
    KiB or more for itself (`ApplyPython311MemoryPatch`, against growth with Python 3.11). The
    kernel then clears each page of each tensor: half of the processor time of a step on the CPU.
    """
    library = ctypes.CDLL(None)
    library.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
    library.mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def has_cuda_gpus() -> bool:
    """Whether all GPUs, if any, are CUDA's; those of plug-ins have no driver and no NCCL."""
    gpus = tf.config.list_physical_devices("GPU")
    details = map(tf.config.experimental.get_device_details, gpus)
    return all("compute_capability" in of_gpu for of_gpu in details)


def device_type_in_scope() -> str:
    """Return "GPU" or "CPU": where operations run that are created, traced or executed now.

    Outside of any `tf.device` it is the GPU if TensorFlow sees one. Private because the public way,
    the device of a tensor made for this purpose, ignores scopes around a `tf.function` while it is
    traced.
    """
    device = tf.DeviceSpec.from_string(context.context().device_name or "")
    default = "GPU" if context.context().num_gpus() else "CPU"
    return device.device_type or default


def configure_coordination_service(
    workers: int, register_timeout_s: int, heartbeat_timeout_s: int
) -> None:
    """Configure the coordination service on worker 0, before a multi-worker strategy.

    Private because no public API sets its timeouts; the strategy would set 10 s and one hour.
    """
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=register_timeout_s * 1000,
        heartbeat_timeout_in_ms=heartbeat_timeout_s * 1000,
        coordinated_jobs=[coordination_config_pb2.CoordinatedJob(name="worker", num_tasks=workers)],
    )
    # Without a barrier, all workers wait forever for one that dies right after the rendezvous.
    context.context().coordination_service.cluster_register_with_barrier = True


def wait_at_barrier(name: str, timeout_s: int) -> None:
    """Wait for all workers; OpError if one died or is late. No public barrier has a timeout."""
    context.context().wait_at_barrier(name, timeout_s * 1000)


def report_error_to_cluster(message: str) -> None:
    """Abort the collectives of all other workers; no public API reports errors. Raises OpError if
    no other worker is left, ValueError without a coordination service.
    """
    context.context().report_error_to_cluster(tf.errors.ABORTED, message)


def run_operations_as_kernels(on: bool = True) -> None:
    """Run each eager operation by its kernel, instead of as a function of this one operation.

    All these functions share one rendezvous. In one of an operation on a GPU that takes or returns
    host memory, the CPU sends the tensor to the GPU's part. Two threads that run the same operation
    send under the same key, so each may receive what the other one sent
    (`reuse_rendezvous_for_functions` in tensorflow/core/common_runtime/eager/execute.cc).

    Private because the public functions have no setting for it. Starts TensorFlow.
    """
    context.context().ensure_initialized()
    pywrap_tfe.TFE_ContextSetRunEagerOpAsFunction(context.context()._handle, not on)


def registered_kernels(operation: str) -> Sequence:
    """Return the KernelDef of each kernel of an operation; the registry is private."""
    return kernels.get_registered_kernels_for_op(operation).kernel


def operation_definition(operation: str):
    """Return the OpDef of an operation. Private for the same reason."""
    return op_def_registry.get(operation)


def device_memory_mib(name: str) -> float:
    """Return the memory in MiB that TensorFlow may use of a device such as `/GPU:0`.

    Private because `tf.config.experimental.get_memory_info` returns the memory in use, but not the
    limit. Raises LookupError if there is no such device.
    """
    devices = pywrap_tfe.TFE_ContextListDevices(context.context()._handle)
    try:
        for index in range(pywrap_tf_session.TF_DeviceListCount(devices)):
            if pywrap_tf_session.TF_DeviceListName(devices, index).endswith(f"/device:{name[1:]}"):
                return pywrap_tf_session.TF_DeviceListMemoryBytes(devices, index) / 2**20
    finally:
        pywrap_tf_session.TF_DeleteDeviceList(devices)
    raise LookupError(f"TensorFlow has no device {name}")


class AdamWOnReducedGradients(keras.optimizers.AdamW):
    """AdamW on gradients that are already summed over the replicas.

    The sum is needed earlier, for clipping by its norm. Overrides a private method because Keras
    optimizers have no public way to skip their own all-reduce.
    """

    def _all_reduce_sum_gradients(self, grads_and_vars):
        return grads_and_vars
