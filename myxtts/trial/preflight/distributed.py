"""Check of a cluster, which all workers run at the same time: their results compared with one
process, and the speed of their all-reduce.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from myxtts.devicefeed.errors import PlacementError
from myxtts.distributed.cluster import Cluster
from myxtts.placement.devices import check_xla_flags, gpu_names
from myxtts.placement.settings import first_own_gpu
from myxtts.placement.worker_group import worker_group
from myxtts.trial.preflight.checks import Check, required
from myxtts.trial.steps import time_all_reduce

TOLERANCE = 1e-5
STEPS = 20

GLOBAL_ROWS = 32
WIDTH = 16

# By bytes; fewer of the larger ones, which take longer.
REPETITIONS = {4: 50, 1 << 12: 50, 1 << 16: 50, 1 << 20: 30, 1 << 24: 10, 1 << 26: 5}


class ClusterResult(NamedTuple):
    """Measurements of a cluster, the same on all workers.

    Attributes:
        replicas: of all workers.
        sum_error: largest error of an all-reduced sum of known numbers.
        all_reduce_s: by bytes of a float32 tensor, the median time until the sum can be read.
        weight_differences: for each replica, the largest between training with all and alone.
        largest_update: the largest change of a weight by training.
    """

    workers: int
    replicas: int
    device_type: str
    sum_error: float
    all_reduce_s: dict[int, float]
    weight_differences: Sequence[float]
    largest_update: float


# All workers run this at the same time. They join one strategy and sum known numbers, which shows
# that the all-reduce is exact. They time the all-reduce by size. Then each trains the same small
# network twice, with all others and alone, and the largest difference of a weight is shared, so
# that every worker reports the same result.
def check_cluster(cluster: Cluster, gpus: int | None) -> ClusterResult:
    """Join the other workers and measure; raises UserError if one is missing or was lost.

    `gpus` is the number of GPUs of this worker; None is its share of all on its host.
    """
    used = _configure_gpus(cluster, gpus)
    with worker_group(cluster, len(used), gpu_names=gpu_names(used)) as strategy:
        replicas = strategy.num_replicas_in_sync
        numbers = tf.range(1024.0)
        factors = tf.range(1.0, replicas + 1.0)
        total = _all_reduce_sum(strategy, lambda replica: numbers * factors[replica])
        sum_error = tf.reduce_max(tf.abs(total - numbers * tf.reduce_sum(factors)))
        times_s = {size: time_all_reduce(strategy, size // 4, n) for size, n in REPETITIONS.items()}
        difference, largest_update = _train_both_ways(strategy)
        differences = _all_reduce_sum(
            strategy, lambda replica: tf.one_hot(replica, replicas, difference, 0.0)
        )
    device_type = "GPU" if used else "CPU"
    by_replica = differences.numpy().tolist()
    return ClusterResult(
        cluster.count, replicas, device_type, float(sum_error), times_s, by_replica, largest_update
    )


def _configure_gpus(cluster: Cluster, count: int | None) -> Sequence[int]:
    """Make the worker's GPUs visible with memory growth; return their indices."""
    check_xla_flags()
    gpus = tf.config.list_physical_devices("GPU")
    rank, workers = cluster.place_on_host
    if count is None:
        count = len(gpus) // workers or len(gpus)
    if count > len(gpus):
        raise PlacementError(
            f"--gpus-per-worker asks for {count} GPUs, but TensorFlow sees {len(gpus)} on this"
            " worker. Give a smaller number; 0 checks with the CPU."
        )
    first = first_own_gpu(max(count - 1, 0), len(gpus), rank, workers)
    used = range(first, first + count)
    tf.config.set_visible_devices([gpus[i] for i in used], "GPU")
    for i in used:
        tf.config.experimental.set_memory_growth(gpus[i], True)
    return used


def _all_reduce_sum(
    strategy: tf.distribute.Strategy, value: Callable[[Any], tf.Tensor]
) -> tf.Tensor:
    """Return the all-reduced sum of `value(replica id)` over all replicas."""

    def reduced():
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", value(context.replica_id_in_sync_group))

    run = tf.function(strategy.run, autograph=False)
    return strategy.experimental_local_results(run(reduced))[0]


def _train_both_ways(strategy: tf.distribute.Strategy) -> tuple[float, float]:
    """Return the largest difference of a weight trained with all and alone, and largest change."""
    # TensorFloat-32 would round products to 10 bits, and the comparison is within 1e-5.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    with strategy.scope():
        distributed = _network()
    with tf.device(strategy.extended.worker_devices[0]):
        single = _network()
        single.set_weights(distributed.get_weights())
        initial = single.get_weights()
        # The default strategy has one replica.
        _train(single, tf.distribute.get_strategy())
    _train(distributed, strategy)
    trained, alone, before = (
        np.concatenate([weight.ravel() for weight in weights])
        for weights in (distributed.get_weights(), single.get_weights(), initial)
    )
    return float(np.abs(trained - alone).max()), float(np.abs(trained - before).max())


def _network() -> keras.Model:
    keras.utils.set_random_seed(1)
    hidden = keras.layers.Dense(32, activation="tanh")
    network = keras.Sequential([keras.Input([WIDTH]), hidden, keras.layers.Dense(1)])
    network.optimizer = keras.optimizers.Adam(0.01)
    network.optimizer.build(network.trainable_variables)
    return network


def _train(network: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Train on a global batch, with a share of its rows on each replica.

    The loss of a replica is the sum over its rows divided by the number of all rows, so the sum of
    the gradients is the gradient of the global batch.
    """
    random = np.random.default_rng(1)
    inputs = tf.constant(random.normal(size=(GLOBAL_ROWS, WIDTH)), tf.float32)
    targets = tf.constant(random.normal(size=(GLOBAL_ROWS, 1)), tf.float32)

    def step():
        first = tf.distribute.get_replica_context().replica_id_in_sync_group
        rows = slice(first, None, strategy.num_replicas_in_sync)
        with tf.GradientTape() as tape:
            errors = network(inputs[rows]) - targets[rows]
            loss = tf.reduce_sum(tf.square(errors)) / GLOBAL_ROWS
        gradients = tape.gradient(loss, network.trainable_variables)
        network.optimizer.apply(gradients, network.trainable_variables)

    traced = tf.function(lambda: strategy.run(step), autograph=False)
    for _ in range(STEPS):
        traced()


def cluster_checks(result: ClusterResult) -> Iterator[Check]:
    """Compare the measurements with what they must be."""
    yield required(
        result.sum_error == 0.0,
        "all-reduce",
        f"the exact sum of known numbers of {result.replicas} replicas",
        f"off by up to {result.sum_error:g}",
        "Install the same versions of TensorFlow and NCCL on all workers.",
    )
    # Not a number if one of them is not.
    difference = float(np.max(result.weight_differences))
    yield required(
        difference <= TOLERANCE < result.largest_update,
        "training",
        f"after {STEPS} steps, the weights of one process trained on the global batch, within"
        f" {TOLERANCE:g}",
        f"largest difference {difference:.1e}, largest update {result.largest_update:.2g}",
        "Use the same versions of TensorFlow and Keras and the same type of device on all workers.",
    )


def all_reduce_table(result: ClusterResult) -> Iterator[str]:
    """Format the times by size; each link of a ring carries 2 (n - 1) / n times as many bytes."""
    yield f"{'bytes':>12} {'median':>12} {'GB/s':>8}"
    for size, seconds in result.all_reduce_s.items():
        yield f"{size:>12,} {1e3 * seconds:>9.2f} ms {size / seconds / 1e9:>8.3f}"
