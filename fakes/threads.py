"""An operation that several threads run at once, for tests and the GPU proof."""

import threading
from concurrent.futures import ThreadPoolExecutor

import tensorflow as tf

from myxtts.devicefeed.internals import run_operations_as_kernels

THREADS = 4


def mixed_up(device: str, rounds: int, as_kernels: bool | None = None) -> int:
    """Return how many results are those of another thread; see `run_operations_as_kernels`, which
    is as before if `as_kernels` is None.

    The operation is the one that `tf.data` runs on the first GPU as it opens a pipeline.
    """
    if as_kernels is not None:
        run_operations_as_kernels(as_kernels)
    barrier = threading.Barrier(THREADS)
    datasets = [tf.data.Dataset.from_tensors(number) for number in range(THREADS)]

    def wrapped(dataset: tf.data.Dataset) -> tf.Tensor:
        barrier.wait()
        with tf.device(device):
            variant = tf.data.experimental.to_variant(dataset)
            return tf.raw_ops.WrapDatasetVariant(input_handle=variant)

    wrong = 0
    with ThreadPoolExecutor(THREADS) as pool, tf.device("/CPU:0"):
        for _ in range(rounds):
            for number, result in enumerate(pool.map(wrapped, datasets)):
                variant = tf.raw_ops.UnwrapDatasetVariant(input_handle=result)
                spec = datasets[number].element_spec
                found = next(iter(tf.data.experimental.from_variant(variant, spec)))
                wrong += int(found.numpy() != number)
    return wrong
