"""The replicas of the model in this process, and the `tf.distribute` strategy over the replicas of
all processes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from myxtts.base.portable_ops import packed
from myxtts.base.tf_internals import has_cuda_gpus
from myxtts.config.schema import WorkersConfig
from myxtts.devicefeed.errors import PlacementError
from myxtts.devicefeed.routes import Placement, Route
from myxtts.distributed.cluster import Cluster
from myxtts.placement.devices import gpu_names
from myxtts.placement.worker_group import TIMEOUTS, worker_group


@dataclass(frozen=True)
class Replicas:
    """One replica for each route of a placement. `devices` has the model device of each, `count` is
    the number of replicas in all processes, and `process` the index of this one.
    """

    strategy: tf.distribute.Strategy
    routes: tuple[Route, ...]  # of this process, with device names that no other process has
    first: int = 0  # index of this process's first replica among those of all processes
    observer: str = ""  # as in `Placement`

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(route.model for route in self.routes)

    @property
    def count(self) -> int:
        return self.strategy.num_replicas_in_sync

    @property
    def device(self) -> str:
        return self.devices[0]

    @contextmanager
    def scope(self):
        """Create new variables of the scope on every replica."""
        with self.strategy.scope(), tf.device(self.device):
            yield

    @property
    def process(self) -> int:
        return self.first // len(self.routes)

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files of the run."""
        return self.first == 0

    @property
    def is_distributed(self) -> bool:
        """Whether other processes also have replicas."""
        return self.count > len(self.routes)

    def all_equal(self, digest: str) -> bool:
        """Return whether all processes call this with the same digest; all must be equally long."""
        if not self.is_distributed:
            return True
        # TensorFlow gathers no strings or bytes: one row of characters for each replica.
        row = tf.constant([[*digest.encode()]], tf.int32)

        @tf.function(autograph=False)
        def gather():
            return tf.distribute.get_replica_context().all_gather(row, axis=0)

        rows = self.local_results(self.strategy.run(gather))[0].numpy()
        return bool((rows == rows[0]).all())

    def all_reduce_sum(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sums of float32 tensors over all replicas. Call it in a replica context."""
        context = tf.distribute.get_replica_context()
        if self.count == 1:
            return list(tensors)
        # One message instead of one for each tensor, as NCCL of several local GPUs has it anyway.
        message, unpack = packed(tensors)
        return unpack(context.all_reduce("SUM", message))

    def per_replica(self, values: Sequence[Any]) -> Any:
        """Return one value for each replica of this process, as an argument of `strategy.run`."""
        remaining = iter(values)
        return self.strategy.experimental_distribute_values_from_function(lambda _: next(remaining))

    def local_results(self, value: Any) -> tuple:
        """Return the value on each replica of this process: the inverse of `per_replica`."""
        return self.strategy.experimental_local_results(value)


def make_replicas(routes: tuple[Route, ...], observer: str = "") -> Replicas:
    """Return the replicas of a single process, on configured devices."""
    models = [route.model for route in routes]
    if len(models) == 1:
        return Replicas(tf.distribute.OneDeviceStrategy(models[0]), routes, observer=observer)
    reduction = None  # NCCL
    # Simulated GPUs share host memory: TensorFlow's collectives would be no faster there, and would
    # allow only one strategy per process, as all strategies number their collectives from the same
    # start.
    if models[0].startswith("/CPU") or not has_cuda_gpus():
        reduction = tf.distribute.ReductionToOneDevice()
    strategy = tf.distribute.MirroredStrategy(models, cross_device_ops=reduction)
    return Replicas(strategy, routes, observer=observer)


@contextmanager
def open_replicas(
    placement: Placement,
    cluster: Cluster | None,
    settings: Mapping[str, str] | None = None,
    workers: WorkersConfig = TIMEOUTS,
) -> Iterator[Replicas]:
    """Yield the replicas of a placement, joined with those of all other workers of a cluster.

    Raises PlacementError if a worker cannot have this placement or the rendezvous failed, and
    PeerLost if another worker died.

    Args:
        placement: of this process, with configured devices.
        settings: values that must be the same on all workers, by their names in messages.
    """
    if cluster is None:
        yield make_replicas(placement.routes, placement.observer)
        return
    models = [route.model for route in placement.routes]
    kind, gpus = "/CPU", 0
    if placement.on_gpu:
        kind, gpus = "/GPU", len(models)
    # TensorFlow's multi-worker strategy always uses the first devices.
    if models != [f"{kind}:{number}" for number in range(len(models))]:
        raise PlacementError(
            f"a worker cannot train on {' '.join(models)}: TensorFlow uses the first devices of"
            " each worker. Give the GPU that makes batches a higher index than the GPUs that"
            " train, such as --data-gpu 1 --model-gpu 0."
        )
    if not placement.on_gpu and len(models) > 1:
        raise PlacementError(
            f"a worker cannot train {len(models)} replicas on simulated GPUs: TensorFlow supports"
            " one replica per worker without GPUs. Start more workers, each with one --model-gpu."
        )

    # Device names get the worker's name: in a function, /GPU:0 could be the GPU of any worker.
    def qualified(device: str) -> str:
        return f"/job:worker/replica:0/task:{cluster.index}/device:{device[1:]}"

    routes = []
    for route in placement.routes:
        data, *further = map(qualified, route.data_devices)
        routes.append(Route(data, qualified(route.model), tuple(further), route.data_shares))
    used = gpu_names(placement.gpus)
    with worker_group(cluster, gpus, settings, workers, used) as strategy:
        observer = placement.observer and qualified(placement.observer)
        yield Replicas(
            strategy, tuple(routes), first=cluster.index * len(models), observer=observer
        )
