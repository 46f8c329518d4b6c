"""Check of a cluster: the workers' results compared with one process, and the speed of their
all-reduce.

All workers run `check_cluster` at the same time.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from myxtts.distributed.cluster import Cluster
from myxtts.distributed.worker_group import worker_group
from myxtts.errors import PlacementError
from myxtts.preflight.checks import Check, required

TOLERANCE = 1e-5
STEPS = 20

# Of the global batch.
ROWS = 32
WIDTH = 16

# Untimed all-reduces of each size, and timed ones by bytes.
WARM_UP = 3
REPETITIONS = {4: 50, 1 << 12: 50, 1 << 16: 50, 1 << 20: 30, 1 << 24: 10, 1 << 26: 5}


class AllReduceTime(NamedTuple):
    """Median time of all-reduces of a float32 tensor, from the call until the sum can be read."""

    size_bytes: int
    median_s: float

    @property
    def bytes_per_s(self) -> float:
        """Bytes of the summed tensor per second. A ring sends 2 (n - 1) / n times as many over each
        link.
        """
        return self.size_bytes / self.median_s


class ClusterResult(NamedTuple):
    """Measurements of a cluster, the same on all workers.

    Attributes:
        replicas: of all workers.
        device_type: `CPU` or `GPU`.
        sum_error: largest difference between an all-reduced sum of known numbers and its true
            value.
        all_reduce_times: by size.
        weight_differences: for each replica, the largest difference between a weight trained by all
            workers together and the same weight trained by its process alone.
        largest_update: the largest change of a weight by training.
    """

    workers: int
    replicas: int
    device_type: str
    sum_error: float
    all_reduce_times: tuple[AllReduceTime, ...]
    weight_differences: tuple[float, ...]
    largest_update: float

    @property
    def passed(self) -> bool:
        return all(check.status == "passed" for check in cluster_checks(self))


def check_cluster(cluster: Cluster, gpus: int | None) -> ClusterResult:
    """Join the other workers and measure.

    Args:
        gpus: number of GPUs to use on this worker; None uses all that TensorFlow sees.

    Raises:
        UserError: a worker is missing or was lost.
    """
    gpus = _configure_gpus(gpus)
    with worker_group(cluster, gpus) as strategy:
        replicas = strategy.num_replicas_in_sync
        sum_error = _sum_error(strategy)
        times = tuple(
            _time_all_reduce(strategy, *size_and_repetitions)
            for size_and_repetitions in REPETITIONS.items()
        )
        difference, largest_update = _train_both_ways(strategy)
        differences = _all_reduce_sum(
            strategy, lambda replica: tf.one_hot(replica, replicas, difference, 0.0)
        )
    return ClusterResult(
        workers=cluster.count,
        replicas=replicas,
        device_type="GPU" if gpus else "CPU",
        sum_error=sum_error,
        all_reduce_times=times,
        weight_differences=tuple(differences.numpy().tolist()),
        largest_update=largest_update,
    )


def _configure_gpus(count: int | None) -> int:
    """Make the first GPUs visible with memory growth, before TensorFlow starts; return their
    number.
    """
    gpus = tf.config.list_physical_devices("GPU")
    count = len(gpus) if count is None else count
    if count > len(gpus):
        raise PlacementError(
            f"--gpus-per-worker asks for {count} GPUs, but TensorFlow sees {len(gpus)} on this"
            " worker. Give a smaller number; 0 checks with the CPU."
        )
    tf.config.set_visible_devices(gpus[:count], "GPU")
    for gpu in gpus[:count]:
        tf.config.experimental.set_memory_growth(gpu, True)
    return count


def _all_reduce_sum(
    strategy: tf.distribute.Strategy, value: Callable[[Any], tf.Tensor]
) -> tf.Tensor:
    """Return the all-reduced sum of `value(replica id)` over all replicas."""

    def reduced():
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", value(context.replica_id_in_sync_group))

    run = tf.function(strategy.run, autograph=False)
    return strategy.experimental_local_results(run(reduced))[0]


def _sum_error(strategy: tf.distribute.Strategy) -> float:
    numbers = tf.range(1024.0)
    replicas = strategy.num_replicas_in_sync
    total = _all_reduce_sum(strategy, lambda replica: numbers * tf.cast(replica + 1, tf.float32))
    return float(tf.reduce_max(tf.abs(total - numbers * (replicas * (replicas + 1) / 2))))


def _time_all_reduce(
    strategy: tf.distribute.Strategy, size_bytes: int, repetitions: int
) -> AllReduceTime:
    with strategy.scope():
        # On the device of each replica.
        numbers = tf.Variable(tf.ones([size_bytes // 4]))

    @tf.function(autograph=False)
    def all_reduce_once():
        return strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce("SUM", numbers.read_value())[:1]
        )

    times_s = []
    for _ in range(WARM_UP + repetitions):
        started_s = time.perf_counter()
        strategy.experimental_local_results(all_reduce_once())[0].numpy()
        times_s.append(time.perf_counter() - started_s)
    return AllReduceTime(size_bytes, statistics.median(times_s[WARM_UP:]))


def _train_both_ways(strategy: tf.distribute.Strategy) -> tuple[float, float]:
    """Train on the same batches with all workers and alone.

    Returns:
        The largest difference of a weight between the two, and the largest change of a weight by
        training.
    """
    # A GPU would round to 10 bits.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    with strategy.scope():
        distributed = _network()
    with tf.device(strategy.extended.worker_devices[0]):
        single = _network()
        single.set_weights(distributed.get_weights())
        initial = single.get_weights()
        _train(single, None)
    _train(distributed, strategy)
    trained = distributed.get_weights()
    return _largest_difference(trained, single.get_weights()), _largest_difference(trained, initial)


def _network() -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = [
        keras.Input([WIDTH]),
        keras.layers.Dense(32, activation="tanh"),
        keras.layers.Dense(1),
    ]
    network = keras.Sequential(layers)
    network.optimizer = keras.optimizers.Adam(0.01)
    network.optimizer.build(network.trainable_variables)
    return network


def _train(network: keras.Model, strategy: tf.distribute.Strategy | None) -> None:
    """Train on a global batch, with a share of its rows on each replica, or alone on all rows.

    The loss of a replica is the sum over its rows divided by the number of all rows, so the sum of
    the gradients is the gradient of the global batch.
    """
    random = np.random.default_rng(1)
    inputs = tf.constant(random.normal(size=(ROWS, WIDTH)), tf.float32)
    targets = tf.constant(random.normal(size=(ROWS, 1)), tf.float32)

    def step():
        first = 0
        stride = 1
        if strategy is not None:
            first = tf.distribute.get_replica_context().replica_id_in_sync_group
            stride = strategy.num_replicas_in_sync
        with tf.GradientTape() as tape:
            errors = network(inputs[first::stride]) - targets[first::stride]
            loss = tf.reduce_sum(tf.square(errors)) / ROWS
        gradients = tape.gradient(loss, network.trainable_variables)
        network.optimizer.apply(gradients, network.trainable_variables)

    traced = tf.function(step if strategy is None else lambda: strategy.run(step), autograph=False)
    for _ in range(STEPS):
        traced()


def _largest_difference(left: list[np.ndarray], right: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(left, right, strict=True))


def cluster_checks(result: ClusterResult) -> Iterator[Check]:
    """Compare the measurements with what they must be."""
    yield required(
        result.sum_error == 0.0,
        "all-reduce",
        f"the exact sum of known numbers of {result.replicas} replicas",
        "exact" if result.sum_error == 0.0 else f"off by up to {result.sum_error:g}",
        "Install the same versions of TensorFlow and NCCL on all workers.",
    )
    difference = max(result.weight_differences)
    yield required(
        difference <= TOLERANCE < result.largest_update,
        "training",
        f"after {STEPS} steps, the weights of one process trained on the global batch, within"
        f" {TOLERANCE:g}",
        f"largest difference {difference:.1e}, largest update {result.largest_update:.2g}",
        "Use the same versions of TensorFlow and Keras and the same type of device on all workers.",
    )


def all_reduce_table(result: ClusterResult) -> Iterator[str]:
    """Format the all-reduce times by size."""
    yield f"{'bytes':>12} {'median':>12} {'GB/s':>8}"
    for row in result.all_reduce_times:
        yield f"{row.size_bytes:>12,} {1e3 * row.median_s:>9.2f} ms {row.bytes_per_s / 1e9:>8.3f}"
