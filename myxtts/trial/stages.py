"""What was measured of the stages of a run."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from myxtts.config.schema import DataConfig
from myxtts.placement.bound import STAGES


@dataclass(frozen=True, eq=False)
class StageTimes:
    """Seconds of each batch in each stage, float64 [batches]; `times["read"]` is `times.read_s`.

    Attributes:
        read_s: reading, decoding and uploading to the data device.
        produce_s: computing features on the data device.
        transfer_s: copying features to the model device; ignored where both are the same device.
        step_s: training on the model device.
    """

    read_s: np.ndarray
    produce_s: np.ndarray
    transfer_s: np.ndarray
    step_s: np.ndarray

    def __len__(self) -> int:
        return len(self.step_s)

    def __getitem__(self, stage: str) -> np.ndarray:
        return getattr(self, f"{stage}_s")

    def mean_s(self, readers: int = 1) -> dict[str, float]:
        """Return the means by stage, and to read what one of so many readers takes for a batch."""
        mean_s = {stage: float(self[stage].mean()) for stage in STAGES}
        return mean_s | {"read": readers * mean_s["read"]}


class StageProfile(NamedTuple):
    """Measured stage times of one replica, enough to rank placements of several.

    Attributes:
        times: of each stage in isolation; `read_s` is the time between two batches of all workers.
        all_reduce_s: of a step's gradients between two replicas.
        batch_rows: of the largest batch; --batch-size does not say it where --batch-seconds rules.
        held_out_batches: of a validation.
        samples_s, evaluation_s: of a set of samples and an evaluation; 0 if the run has none.
        fixed: fraction of a step that does not depend on its rows.
    """

    times: StageTimes
    all_reduce_s: float
    batch_rows: int = DataConfig().batch_size
    held_out_batches: int = 0
    samples_s: float = 0.0
    evaluation_s: float = 0.0
    fixed: float = 0.0


def coefficient_of_variation(times_s: np.ndarray) -> float:
    """Return the standard deviation over the mean, 0 where all times are 0."""
    return float(times_s.std() / times_s.mean()) if times_s.any() else 0.0
