"""What happens between two steps: hooks, which the loop calls in the order of a list."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import tensorflow as tf

from myxtts.batch import Batch
from myxtts.clock import FIRST_STEP
from myxtts.data.batch_plan import PlannedStep
from myxtts.files import tolerate_full_disk
from myxtts.placement.audit import require_device
from myxtts.report.metrics import MetricsFile
from myxtts.report.page import PageThread
from myxtts.report.reporter import Reporter
from myxtts.throughput.assess import InputBoundWarning
from myxtts.training.observation import OBSERVER, Observer, Snapshot
from myxtts.training.schedule import Observation, due_parts, is_due
from myxtts.training.state import TrainingState
from myxtts.training.stop_request import StopRequest

log = logging.getLogger(__name__)


@dataclass
class StepEnd:
    """A step that was taken, as hooks see it.

    Attributes:
        state: after the step.
        outcome: what `Step` returned.
        planned: the step in the plan.
        total_steps: of the run.
        step: its number. `SyncWeights` may move the state to a later step; then only this number
            stays.
        batches: of the first step of this process, the first microbatch and that of the next step,
            on the model devices. No other step keeps its batches.
        stop: tells whether the run received a request to stop.
        metrics: of the report that is due; hooks add to it.
        save: whether a checkpoint of this step is written; set by the loop, and by a hook that
            needs one.
        owes_sync: whether the sync of this step was stopped, so that its weights are not the final
            ones.
    """

    state: TrainingState
    outcome: tf.Tensor
    planned: PlannedStep
    total_steps: int
    stop: StopRequest
    step: int = field(init=False)
    batches: Sequence[Sequence[Batch]] = ()
    metrics: dict[str, float | str] = field(default_factory=dict)
    save: bool = False
    owes_sync: bool = False

    def __post_init__(self) -> None:
        self.step = self.state.step

    @property
    def is_first(self) -> bool:
        """Whether it is the first step of this process."""
        return bool(self.batches)

    @property
    def is_last(self) -> bool:
        """Whether the run is done; a sync may have moved the state to the last step."""
        return self.state.step >= self.total_steps

    def is_due(self, every: int) -> bool:
        """Whether what is done every so many steps is due after this one."""
        return is_due(every, self.step, self.is_last) and not self.owes_sync


class Hook(Protocol):
    """Something that is done after some steps.

    Attributes:
        pause_kind: under which the run's summary counts the time that it takes.
    """

    pause_kind: str

    def is_due(self, end: StepEnd) -> bool:
        """Whether to call it after this step."""
        ...

    def __call__(self, end: StepEnd) -> None:
        """Do it."""
        ...


class CheckDevices:
    """Checks after the first step that everything is on the device that the placement names.

    Args:
        started_s: when the program started, in seconds of `time.perf_counter`, for the log.
    """

    pause_kind = FIRST_STEP

    def __init__(self, started_s: float):
        self._started_s = started_s

    def is_due(self, end: StepEnd) -> bool:
        return end.is_first

    def __call__(self, end: StepEnd) -> None:
        """Raise PlacementError if a tensor or variable is not on the device of its replica."""
        check_devices(end.state, end.batches, end.outcome)
        # Reading the outcome waits for the end of the step.
        end.outcome.numpy()
        log.info("first step     %.1f s after the start", time.perf_counter() - self._started_s)


def check_devices(
    state: TrainingState, microbatches: Sequence[Sequence[Batch]], outcome: tf.Tensor
) -> None:
    """Raise PlacementError if a variable, an outcome or a batch is not on the device of its
    replica.
    """
    state.require_devices()
    require_device(state.device, [("losses", outcome)])
    for batches in microbatches:
        for device, batch in zip(state.replicas.devices, batches, strict=True):
            require_device(device, batch.items())


class Report:
    """Writes the metrics of a step, if there are any."""

    pause_kind = "reports"

    def __init__(self, reporter: Reporter, input_bound_warning: InputBoundWarning):
        self._reporter, self._input_bound_warning = reporter, input_bound_warning

    def is_due(self, end: StepEnd) -> bool:
        return bool(end.metrics)

    def __call__(self, end: StepEnd) -> None:
        self._reporter.write(end.state.step, end.metrics)
        self._input_bound_warning(end.state.step, end.metrics)


class RefreshPage:
    """Asks for a new report.html after each report."""

    pause_kind = "reports"

    def __init__(self, page: PageThread):
        self._page = page

    def is_due(self, end: StepEnd) -> bool:
        return bool(end.metrics)

    def __call__(self, end: StepEnd) -> None:
        self._page.request()


class RecordMetrics:
    """Writes the metrics of a worker other than the chief to its own metrics.jsonl, for the page of
    the run.

    Args:
        path: of the file.
        step: steps that are done already.
    """

    pause_kind = "reports"

    def __init__(self, path: Path, step: int):
        self._file = MetricsFile(path, step)

    def __enter__(self) -> "RecordMetrics":
        return self

    def __exit__(self, *_) -> None:
        with tolerate_full_disk("the last metrics"):
            self._file.close()

    def is_due(self, end: StepEnd) -> bool:
        return bool(end.metrics)

    def __call__(self, end: StepEnd) -> None:
        with tolerate_full_disk(f"the metrics of step {end.step}"):
            self._file.write({"step": end.step, **end.metrics})


class Observe:
    """Takes a snapshot of the weights where a part of an observation is due, and lets the observer
    work on it.

    The step gets a checkpoint, from which a resumed run repeats an observation that has no result.

    Args:
        periods: in steps, by part of an observation; 0 turns one off.
        add_provisional: (step) lets the checkpoint of a step go when nothing but the observation
            asked for it.
    """

    pause_kind = OBSERVER

    def __init__(
        self,
        periods: Mapping[str, int],
        observer: Observer,
        snapshot: Snapshot,
        add_provisional: Callable[[int], None],
    ):
        self._periods = periods
        self._observer, self._snapshot, self._add_provisional = observer, snapshot, add_provisional

    def _due_parts(self, end: StepEnd) -> tuple[str, ...]:
        if end.owes_sync:
            return ()
        return due_parts(self._periods, end.step, end.is_last)

    def is_due(self, end: StepEnd) -> bool:
        return bool(self._due_parts(end))

    def __call__(self, end: StepEnd) -> None:
        state = end.state
        observation = Observation(state.step, self._due_parts(end))
        state.pending_observations += (observation,)
        if not (end.save or end.is_last):
            self._add_provisional(state.step)
        end.save = True
        if self._observer.wait(lambda: end.stop.requested or end.stop.due(), observation.step):
            self._snapshot.take()
            self._observer.begin(observation)
