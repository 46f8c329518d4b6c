"""Every use of a private or deprecated TensorFlow or Keras API, one function each, with the reason.

requirements.txt caps TensorFlow's minor version because of this module: check each function before
raising the cap, and the public APIs that are marked experimental (`grep experimental`).
"""

from collections.abc import Sequence

import keras
import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels, op_def_registry


def has_cuda_gpus() -> bool:
    """Whether all GPUs, if any, are CUDA's; GPUs of plug-ins have no driver and no NCCL."""
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


class OptimizerOfSums(keras.optimizers.AdamW):
    """AdamW on gradients that are already summed over the replicas, for many variables in one call.

    The sum is needed earlier, for clipping by its norm. Overrides private methods because Keras
    optimizers have no public way to skip their own all-reduce, and update variable by variable.
    """

    def update(self, rate, decay, weights, momenta, velocities, gradients) -> None:
        """Update lists of variables on one replica by a learning rate and a weight decay."""
        raise NotImplementedError

    def _apply_weight_decay(self, variables):
        """Do nothing: `update` does."""

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        def update(_, *arguments):
            self.update(*arguments)

        def update_all(strategy, gradients, rate):
            pairs = list(zip(trainable_variables, gradients, strict=True))
            for decays in (True, False):
                chosen = [pair for pair in pairs if self._use_weight_decay(pair[0]) == decays]
                if chosen:
                    weights, of_weights = zip(*chosen, strict=True)
                    places = [self._get_variable_index(weight) for weight in weights]
                    moments = [[m[i] for i in places] for m in (self._momentums, self._velocities)]
                    variables = [[v.value for v in each] for each in (weights, *moments)]
                    arguments = rate, self.weight_decay * decays, *variables, of_weights
                    strategy.extended.update(variables[0][0], update, arguments, group=False)

        tf.__internal__.distribute.interim.maybe_merge_call(
            update_all, self._distribution_strategy, list(grads), learning_rate
        )
