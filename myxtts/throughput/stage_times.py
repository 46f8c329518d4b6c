"""Times of the stages as statistics and as measurements, and samples of them. No TensorFlow."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from myxtts.errors import ConfigError
from myxtts.throughput.model import STAGES, StageTimes

MAX_STAGE_S = 60.0
MAX_VARIATION = 10.0
# Below it times are equal: a float64 has no more digits for the correction.
MIN_VARIATION = 1e-9


@dataclass(frozen=True, config=ConfigDict(strict=True))
class StageStatistics:
    """Mean seconds of a stage, and its coefficient of variation (deviation over mean)."""

    mean_s: Annotated[float, Field(ge=0.0, le=MAX_STAGE_S)]
    variation: Annotated[float, Field(ge=0.0, le=MAX_VARIATION)] = 0.0


def sample_stage_times(
    statistics: Mapping[str, StageStatistics], n: int, seed: int = 0
) -> StageTimes:
    """Return `n` batches whose stages vary independently.

    Args:
        statistics: by stage; a stage that is missing takes no time.

    Raises:
        ValueError: as `gamma_times`.
    """
    random = np.random.default_rng(seed)
    by_stage = (statistics.get(stage, StageStatistics(0.0)) for stage in STAGES)
    return StageTimes(
        *(gamma_times(random, stage.mean_s, stage.variation, n) for stage in by_stage)
    )


def gamma_times(random: np.random.Generator, mean_s: float, variation: float, n: int) -> np.ndarray:
    """Return `n` gamma distributed times with exactly this mean and coefficient of variation.

    The deviation of a finite sample differs from that of its distribution, so the sample is raised
    to the power that corrects the difference and then scaled.

    Raises:
        ValueError: `n` times cannot vary so much; the limit is sqrt(n - 1), where all but one are
            0.
    """
    if variation < MIN_VARIATION:
        return np.full(n, mean_s)
    if variation > 0.9 * np.sqrt(n - 1):
        raise ValueError(
            f"{n} times cannot have a standard deviation of {variation:g} times their mean"
        )
    times = random.gamma(variation**-2, size=n)
    times /= times.max()
    low = 0.0
    high = 1.0
    while coefficient_of_variation(times**high) < variation:
        low = high
        high *= 2
    # 50 bisections leave no digit of a float64 open.
    for _ in range(50):
        middle = (low + high) / 2
        if coefficient_of_variation(times**middle) < variation:
            low = middle
        else:
            high = middle
    times **= high
    return times * (mean_s / times.mean())


def coefficient_of_variation(times_s: np.ndarray) -> float:
    """Return the standard deviation over the mean, 0 where all times are 0."""
    return float(times_s.std() / times_s.mean()) if times_s.any() else 0.0


def read_s_per_worker(interval_s: np.ndarray | float, num_workers: int) -> float:
    """Return the mean seconds that one worker takes to read a batch.

    Batches arrive in bursts, since several workers read: only the mean interval says anything about
    reading.

    Args:
        interval_s: between two batches from all workers together.
    """
    return num_workers * float(np.mean(interval_s))


class Profile(BaseModel):
    """What `plan` reads of a file that the profiler wrote.

    Attributes:
        stages: statistics by stage; the time to read is that between two batches from all workers
            together.
        num_workers: readers of the profiled run; None if the file does not say.
        single_device: one device made the batches and trained, so the time to transfer a batch is
            unknown.
    """

    model_config = ConfigDict(strict=True)

    stages: dict[str, StageStatistics] = {}
    num_workers: Annotated[int, Field(ge=1)] | None = None
    single_device: bool = False


def read_profile(path: Path) -> Profile:
    """Read a file that the profiler wrote with --json.

    Raises:
        ConfigError: the file is missing, is no profile, or contains impossible numbers.
    """
    source = f"--profile {path}"
    advice = "Give a file that `myxtts profile --json` wrote."
    try:
        profile = Profile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}. {advice}") from error
    except ValidationError as error:
        fault = error.errors()[0]
        found = ""
        # Without a place the whole file is no JSON, or no object.
        if fault["loc"]:
            found = f", but {'.'.join(map(str, fault['loc']))} is {fault['input']!r}"
        raise ConfigError(f"{source} is no profile: {fault['msg']}{found}. {advice}") from error
    if not {"produce", "step"} <= set(profile.stages):
        raise ConfigError(f"{source} has no stages, or lacks produce or step. {advice}")
    return profile


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
    """

    times: StageTimes
    bucket: np.ndarray
    all_reduce_s: float
    held_out_batches: int = 0
    samples_s: float = 0.0
    evaluation_s: float = 0.0

    def per_reader(self, num_workers: int) -> StageTimes:
        """Return the stage times with the mean time that one of `num_workers` readers takes for a
        batch.
        """
        read_s = self.times.read_s
        return replace(
            self.times, read_s=np.full_like(read_s, read_s_per_worker(read_s, num_workers))
        )


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
