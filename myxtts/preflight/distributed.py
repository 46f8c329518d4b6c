"""Whether the workers of a cluster compute together what one computes alone, and how fast they add up.

Every worker runs `examine` at the same time.
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
from myxtts.preflight.checks import Check, check

TOLERANCE = 1e-5
STEPS = 20
ROWS, WIDTH = 32, 16  # of the global batch
WARM_UP = 3  # all-reduces of a size before its times count
REPETITIONS = {4: 50, 1 << 12: 50, 1 << 16: 50, 1 << 20: 30, 1 << 24: 10, 1 << 26: 5}  # by bytes


class Speed(NamedTuple):
    """All-reduces of a float32 tensor.

    Attributes:
        size_bytes: of the tensor.
        median_s: of one, from the call until the sum can be read.
    """

    size_bytes: int
    median_s: float

    @property
    def bytes_per_s(self) -> float:
        """Of the tensor that is summed; a ring sends 2 (n - 1) / n as much over each link."""
        return self.size_bytes / self.median_s


class Findings(NamedTuple):
    """What was found; the same on all workers.

    Attributes:
        workers: that took part.
        replicas: of all of them.
        kind: of their devices, `CPU` or `GPU`.
        wrong_sum: largest difference between a sum of known numbers and what it has to be.
        speeds: by size.
        differences: of each replica, the largest between a weight that all trained together and the same weight as
            this one's process trained it alone.
        moved: the largest change of a weight by training.
    """

    workers: int
    replicas: int
    kind: str
    wrong_sum: float
    speeds: tuple[Speed, ...]
    differences: tuple[float, ...]
    moved: float

    @property
    def holds(self) -> bool:
        return all(made.state == "holds" for made in checks_of(self))


def examine(cluster: Cluster, gpus: int | None) -> Findings:
    """Join the other workers, and measure.

    Args:
        gpus: of this worker that take part; None takes all that TensorFlow sees.

    Raises:
        UserError: the workers do not come together, or one is lost.
    """
    gpus = _show_gpus(gpus)
    with worker_group(cluster, gpus) as strategy:
        replicas = strategy.num_replicas_in_sync
        wrong_sum = _wrong_sum(strategy)
        speeds = tuple(_speed(strategy, *one) for one in REPETITIONS.items())
        difference, moved = _train_both_ways(strategy)
        differences = _sum(strategy, lambda replica: tf.one_hot(replica, replicas, difference, 0.0))
    kind = "GPU" if gpus else "CPU"
    return Findings(cluster.count, replicas, kind, wrong_sum, speeds, tuple(differences.numpy().tolist()), moved)


def _show_gpus(gpus: int | None) -> int:
    """Make so many GPUs visible, before TensorFlow starts."""
    found = tf.config.list_physical_devices("GPU")
    gpus = len(found) if gpus is None else gpus
    if gpus > len(found):
        raise PlacementError(
            f"{gpus} GPUs of this worker were to take part, but TensorFlow sees {len(found)}. "
            "Give fewer by --gpus-per-worker; 0 checks with the CPU."
        )
    tf.config.set_visible_devices(found[:gpus], "GPU")
    for gpu in found[:gpus]:
        tf.config.experimental.set_memory_growth(gpu, True)
    return gpus


def _sum(strategy: tf.distribute.Strategy, value: Callable[[Any], tf.Tensor]) -> tf.Tensor:
    """All-reduced sum of a value of each replica, which is told its number among all."""

    def reduced():
        context = tf.distribute.get_replica_context()
        return context.all_reduce("SUM", value(context.replica_id_in_sync_group))

    return strategy.experimental_local_results(tf.function(strategy.run)(reduced))[0]


def _wrong_sum(strategy: tf.distribute.Strategy) -> float:
    numbers, replicas = tf.range(1024.0), strategy.num_replicas_in_sync
    total = _sum(strategy, lambda replica: numbers * tf.cast(replica + 1, tf.float32))
    return float(tf.reduce_max(tf.abs(total - numbers * (replicas * (replicas + 1) / 2))))


def _speed(strategy: tf.distribute.Strategy, size_bytes: int, repetitions: int) -> Speed:
    with strategy.scope():
        numbers = tf.Variable(tf.ones([size_bytes // 4]))  # on the device of each replica

    @tf.function
    def reduce_once():
        return strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", numbers.read_value())[:1])

    times_s = []
    for _ in range(WARM_UP + repetitions):
        began_s = time.perf_counter()
        strategy.experimental_local_results(reduce_once())[0].numpy()
        times_s.append(time.perf_counter() - began_s)
    return Speed(size_bytes, statistics.median(times_s[WARM_UP:]))


def _train_both_ways(strategy: tf.distribute.Strategy) -> tuple[float, float]:
    """Largest difference of a weight between training with all workers and alone, on the same batches; and its move."""
    tf.config.experimental.enable_tensor_float_32_execution(False)  # a GPU would round to 10 bits
    with strategy.scope():
        together = _network()
    with tf.device(strategy.extended.worker_devices[0]):
        alone = _network()
        alone.set_weights(together.get_weights())
        before = alone.get_weights()
        _train(alone, None)
    _train(together, strategy)
    after = together.get_weights()
    return _largest_difference(after, alone.get_weights()), _largest_difference(after, before)


def _network() -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = [keras.Input([WIDTH]), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(1)]
    network = keras.Sequential(layers)
    network.optimizer = keras.optimizers.Adam(0.01)
    network.optimizer.build(network.trainable_variables)
    return network


def _train(network: keras.Model, strategy: tf.distribute.Strategy | None) -> None:
    """Take steps on a batch of which each replica has its share of rows, or on the whole of it alone.

    A loss is a sum over rows divided by those of all, so that the sum of the gradients is that of the whole batch.
    """
    numbers = np.random.default_rng(1)
    inputs = tf.constant(numbers.normal(size=(ROWS, WIDTH)), tf.float32)
    targets = tf.constant(numbers.normal(size=(ROWS, 1)), tf.float32)

    def step():
        first, stride = 0, 1
        if strategy is not None:
            first = tf.distribute.get_replica_context().replica_id_in_sync_group
            stride = strategy.num_replicas_in_sync
        with tf.GradientTape() as tape:
            errors = network(inputs[first::stride]) - targets[first::stride]
            loss = tf.reduce_sum(tf.square(errors)) / ROWS
        gradients = tape.gradient(loss, network.trainable_variables)
        network.optimizer.apply(gradients, network.trainable_variables)

    take = tf.function(step if strategy is None else lambda: strategy.run(step))
    for _ in range(STEPS):
        take()


def _largest_difference(some: list[np.ndarray], others: list[np.ndarray]) -> float:
    return max(float(np.abs(one - other).max()) for one, other in zip(some, others, strict=True))


def checks_of(found: Findings) -> Iterator[Check]:
    """What has to hold."""
    yield check(
        found.wrong_sum == 0.0,
        "all-reduce",
        f"the exact sum of known numbers of {found.replicas} replicas",
        "exact" if found.wrong_sum == 0.0 else f"off by up to {found.wrong_sum:g}",
        "Give all workers the same TensorFlow and NCCL.",
    )
    difference = max(found.differences)
    yield check(
        difference <= TOLERANCE < found.moved,
        "training",
        f"weights after {STEPS} steps as if one process had trained on the whole batch, within {TOLERANCE:g}",
        f"largest difference {difference:.1e}, after a change of up to {found.moved:.2g}",
        "Give all workers the same TensorFlow, Keras and kind of device.",
    )


def table_of(found: Findings) -> Iterator[str]:
    """The all-reduce by size, as lines."""
    yield f"{'bytes':>12} {'median':>12} {'GB/s':>8}"
    for speed in found.speeds:
        yield f"{speed.size_bytes:>12,} {1e3 * speed.median_s:>9.2f} ms {speed.bytes_per_s / 1e9:>8.3f}"
