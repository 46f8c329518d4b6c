"""What was measured of the stages of a run."""

from typing import NamedTuple

import numpy as np

from myxtts.placement.bound import StageTimes


class StageProfile(NamedTuple):
    """Measured stage times of one replica, enough to predict placements of several.

    Attributes:
        times: of each stage in isolation; `read_s` is the time between two batches from all workers
            together.
        bucket: int [batches], the bucket of each batch.
        all_reduce_s: of a step's gradients between two replicas.
        held_out_batches: of a validation.
        samples_s: of a set of samples; 0 if the run writes none.
        evaluation_s: of an evaluation; 0 if the run has none.
        fixed: fraction of a step that does not depend on its rows.
    """

    times: StageTimes
    bucket: np.ndarray
    all_reduce_s: float
    held_out_batches: int = 0
    samples_s: float = 0.0
    evaluation_s: float = 0.0
    fixed: float = 0.0


def resample_steps(times: StageTimes, buckets: np.ndarray, replicas: int, steps: int) -> StageTimes:
    """Draw steps of one batch per replica from measured batches; the times of a batch stay
    together.

    All batches of a step are from one bucket, as in the plan. The first batches of the steps are
    all measured batches, each equally often and in random order, so that the mean depends on chance
    only within a bucket.

    Args:
        buckets: int [batches], of the measured batches.
        steps: the minimum number of steps; rounded up to a multiple of the measured batches.
    """
    random = np.random.default_rng(0)
    first = random.permutation(np.tile(np.arange(len(times)), -(-steps // len(times))))
    by_bucket = np.argsort(buckets, kind="stable")
    sorted_buckets = buckets[by_bucket]
    begin = np.searchsorted(sorted_buckets, buckets[first], "left")[:, None]
    end = np.searchsorted(sorted_buckets, buckets[first], "right")[:, None]
    others = by_bucket[random.integers(begin, end, (len(first), replicas - 1))]
    batches = np.column_stack([first, others]).ravel()
    return times.map(lambda times_s: times_s[batches])
