"""The replicas of the model in this process, and the strategy that joins them with those of all others."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from myxtts.distributed.cluster import Cluster
from myxtts.distributed.worker_group import worker_group
from myxtts.errors import PlacementError
from myxtts.placement.routes import Placement, Route


@dataclass(frozen=True)
class Replicas:
    """One replica for each route of a placement.

    Attributes:
        strategy: of one device, of several (mirrored), or of several processes.
        routes: of this process, by names that no other process has a device of.
        first: number of the first of them among those of all processes.
    """

    strategy: tf.distribute.Strategy
    routes: tuple[Route, ...]
    first: int = 0

    @property
    def devices(self) -> tuple[str, ...]:
        """Model device of each replica of this process."""
        return tuple(route.model for route in self.routes)

    @property
    def count(self) -> int:
        """Replicas of all processes."""
        return self.strategy.num_replicas_in_sync

    @property
    def device(self) -> str:
        """Where what one replica does for all lies: validation, samples, losses."""
        return self.devices[0]

    @contextmanager
    def scope(self):
        """Variables that are made inside are on every replica."""
        with ExitStack() as opened:
            opened.enter_context(self.strategy.scope())
            opened.enter_context(tf.device(self.device))
            yield

    @property
    def process(self) -> int:
        """Index of this process; the chief is 0."""
        return self.first // len(self.routes)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what a run leaves."""
        return self.first == 0

    @property
    def is_distributed(self) -> bool:
        """Whether other processes take part."""
        return self.count > len(self.routes)

    def all_equal(self, digest: str) -> bool:
        """Whether all processes call this with the same hexadecimal digest."""
        if not self.is_distributed:
            return True
        number = tf.constant(int(digest[:6], 16), tf.float64)  # its square is exact

        @tf.function
        def sums():
            context = tf.distribute.get_replica_context()
            return context.all_reduce("SUM", tf.stack([number, number**2]))

        total, squares = self.local_results(self.strategy.run(sums))[0].numpy()
        return total**2 == squares * self.count

    def all_reduce_sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The sums over all replicas of some float32 tensors, inside a replica."""
        context = tf.distribute.get_replica_context()
        if not self.is_distributed:
            return context.all_reduce("SUM", list(tensors))
        # Between processes each tensor would be a message around the ring.
        total = context.all_reduce("SUM", tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0))
        parts = tf.split(total, [tensor.shape.num_elements() for tensor in tensors])
        return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]

    def per_replica(self, values: Sequence[Any]) -> Any:
        """One value for each replica of this process, as arguments of `strategy.run`."""
        left = iter(values)
        return self.strategy.experimental_distribute_values_from_function(lambda _: next(left))

    def local_results(self, value: Any) -> tuple:
        """What each replica of this process has of a result or a variable: the inverse of `per_replica`."""
        return self.strategy.experimental_local_results(value)


def single_replica(device: str) -> Replicas:
    """On one device, by a strategy of one."""
    return make_replicas((Route(device, device),))


def make_replicas(routes: tuple[Route, ...]) -> Replicas:
    """The replicas of one process, on devices that are set up."""
    models = [route.model for route in routes]
    if len(models) == 1:
        return Replicas(tf.distribute.OneDeviceStrategy(*models), routes)
    # NCCL between GPUs. Simulated ones share the host's memory: there, TensorFlow's collectives would add up no faster,
    # and a process could have one strategy only, since all of them count their collectives from the same number.
    ways = None if models[0].startswith("/GPU") else tf.distribute.ReductionToOneDevice()
    return Replicas(tf.distribute.MirroredStrategy(models, cross_device_ops=ways), routes)


@contextmanager
def open_replicas(
    placement: Placement, cluster: Cluster | None, settings: Mapping[str, str] | None = None
) -> Iterator[Replicas]:
    """The replicas of a placement, with those of all other workers where there is a cluster.

    Args:
        placement: of this process, whose devices are set up.
        cluster: as `find_cluster` gives it.
        settings: values that must be the same on all workers, by their names in messages.

    Raises:
        PlacementError: the placement cannot be that of a worker, or the workers do not come together.
        WorkerLost: another worker died.
    """
    if cluster is None:
        yield make_replicas(placement.routes)
        return
    models = [route.model for route in placement.routes]
    check_worker_devices(placement, models)
    # In a function, /GPU:0 could be that of any worker.
    own = f"/job:worker/replica:0/task:{cluster.index}/device:"
    routes = tuple(Route(own + route.data[1:], own + route.model[1:]) for route in placement.routes)
    with worker_group(cluster, len(models) if placement.on_gpu else 0, settings) as strategy:
        yield Replicas(strategy, routes, first=cluster.index * len(models))


def check_worker_devices(placement: Placement, models: Sequence[str]) -> None:
    """TensorFlow's strategy of several workers takes the first GPUs that a worker sees, or its first CPU."""
    kind = models[0].rpartition(":")[0]
    if models != [f"{kind}:{number}" for number in range(len(models))]:
        raise PlacementError(
            f"a worker was to train on {' '.join(models)}, but TensorFlow trains on the first devices of a worker. "
            "Give the GPU that makes batches a higher number than those that train, such as "
            "--data-gpu 1 --model-gpu 0."
        )
    if not placement.on_gpu and len(models) > 1:
        raise PlacementError(
            f"a worker was to train {len(models)} replicas on simulated GPUs, but TensorFlow gives a worker without "
            "GPUs one. Start more workers, each with one --model-gpu."
        )
