"""The run that a profile measures: its set-up, and the batches that are measured."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from myxtts.config.flags import turned_off, with_values
from myxtts.config.schema import OFF_IN_TRIAL, Config
from myxtts.data.batch_plan import Pass
from myxtts.data.pipeline import Pipeline
from myxtts.placement.routes import Placement, Route, single_route
from myxtts.training import setup as training_setup
from myxtts.training.diagnostics import explained_out_of_memory
from myxtts.training.runs import RunFolder
from myxtts.training.setup import TrainingSetup, resolve_start
from myxtts.training.step import Step

WARM_UP = 5  # steps that are not measured: later steps neither fill an empty queue nor trace


@dataclass(frozen=True)
class ProfiledRun:
    """A run of one replica before its first step."""

    placement: Placement
    setup: TrainingSetup
    step: Step

    @property
    def route(self) -> Route:
        return self.placement.routes[0]


@contextmanager
def open_run(config: Config) -> Iterator[ProfiledRun]:
    """Set up a run with these settings, in a run folder that is removed afterwards.

    Raises:
        UserError: the run could not start, or its steps do not fit into memory.
    """
    with tempfile.TemporaryDirectory(prefix="myxtts-profile-") as name:
        config = with_values(turned_off(config, OFF_IN_TRIAL), {"observer": "model"})
        with training_setup.open_run(resolve_start(config, RunFolder(Path(name)))) as opened:
            single_route(opened.placement, "a profile")
            with explained_out_of_memory(opened.placement, can_resume=False):
                setup = opened.set_up(opened.read_corpora())
                yield ProfiledRun(opened.placement, setup, setup.make_step())


@dataclass(frozen=True)
class MeasurementWindow:
    """The batches of a measurement, from the beginning of the plan; the first WARM_UP steps are not
    measured.

    Attributes:
        step: int [batches], number of each batch's step.
        bucket: int [batches].
        audio_s, padded_s: float [batches], seconds of speech in each batch, without and with
            padding.
    """

    step: np.ndarray
    bucket: np.ndarray
    audio_s: np.ndarray
    padded_s: np.ndarray

    @property
    def measured(self) -> np.ndarray:
        """bool [batches], which batches are measured."""
        return self.step >= WARM_UP

    @property
    def measured_buckets(self) -> np.ndarray:
        """int [measured batches], the bucket of each."""
        return self.bucket[self.measured]

    @property
    def step_buckets(self) -> np.ndarray:
        """int [measured steps], the bucket of each."""
        last_of_step = np.append(np.diff(self.step) > 0, True)
        return self.bucket[self.measured & last_of_step]

    @property
    def most_frequent_bucket(self) -> int:
        return int(np.bincount(self.measured_buckets).argmax())


def measurement_window(pipeline: Pipeline, steps: int) -> MeasurementWindow:
    """Return the window of WARM_UP and `steps` steps; a short corpus is read for several epochs."""
    columns, step = [], 0
    for planned in pipeline.producers[0].planned(Pass()):
        columns.append((step, planned.step.bucket, planned.audio_s, planned.padded_s))
        step += planned.last
        if step == WARM_UP + steps:
            break
    return MeasurementWindow(*map(np.array, zip(*columns, strict=True)))
