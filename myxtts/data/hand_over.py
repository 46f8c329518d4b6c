"""Stage E of a batch's life: its features are copied from the data device to the model device.

Copies are part of compiled functions. An eager copy to a GPU blocks its caller, and each tensor's
copy waits for everything that is queued on the receiving GPU (TensorFlow's
`GPUUtil::DeviceToDeviceCopy` and `CopyCPUTensorToGPU`).
"""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from myxtts.batch import Batch, Field, tensor_specs


def copied(batches: Sequence[Batch], devices: Sequence[str]) -> list[Batch]:
    """Copy one batch to each device; to be traced, as a part of a compiled function."""
    copies = []
    for batch, device in zip(batches, devices, strict=True):
        with tf.device(device):
            copies.append({name: tf.identity(value) for name, value in batch.items()})
    return copies


def compile_hand_over(
    fields: Mapping[str, Field], devices: Sequence[str]
) -> Callable[[Sequence[Batch]], list[Batch]]:
    """Trace on the main thread a function that copies one batch of a contract to each device."""
    specs = [tensor_specs(dict(fields))] * len(devices)
    compiled = tf.function(
        lambda batches: copied(batches, devices), autograph=False
    ).get_concrete_function(specs)

    def hand_over(batches: Sequence[Batch]) -> list[Batch]:
        # The `device` of the results; their `backing_device` is the one of each copy.
        with tf.device(devices[0]):
            return compiled(list(batches))

    return hand_over
