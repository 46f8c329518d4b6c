"""Sizes of TensorFlow's two thread pools. No TensorFlow.

The intra-op pool splits one operation over several threads. The inter-op pool runs operations that
do not depend on each other, and those of tf.data. All logical devices of a process share both
pools.
"""

from typing import NamedTuple

from myxtts.placement.routes import Placement

FEW_CORES = 2


class ThreadPools(NamedTuple):
    """Numbers of threads; None is TensorFlow's default, one for each core that the process may run
    on.
    """

    intra_op: int | None
    inter_op: int | None


def automatic_pools(placement: Placement, cores: int, small_operations: bool) -> ThreadPools:
    """Return the sizes that `auto` stands for.

    On up to 2 cores one thread computes each operation if most operations are small: to split these
    over two threads costs more than it gains (docs/decisions.md). On more cores, where nothing was
    measured, an operation may use all.

    Args:
        cores: that this process may keep busy.
        small_operations: see `Task.has_small_operations`.
    """
    if placement.on_gpu:
        return ThreadPools(None, None)
    return ThreadPools(1 if small_operations and cores <= FEW_CORES else cores, cores)
