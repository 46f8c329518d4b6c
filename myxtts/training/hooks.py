"""What happens between two steps: hooks, which the loop calls in the order of a list."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import tensorflow as tf

from myxtts.batch import Batch
from myxtts.clock import FIRST_STEP
from myxtts.config.schema import RunConfig
from myxtts.placement.audit import require_device
from myxtts.report.reporter import Reporter
from myxtts.tasks.base import Evaluator
from myxtts.throughput.assess import InputBoundWarning
from myxtts.training.observer import OBSERVER, Observer
from myxtts.training.schedule import (
    EVALUATION,
    SAMPLES,
    VALIDATION,
    Observation,
    without,
    without_part,
)
from myxtts.training.snapshot import Snapshot
from myxtts.training.state import TrainingState
from myxtts.training.stop_request import StopRequest
from myxtts.training.validation import Validation, validation_metrics

log = logging.getLogger(__name__)


@dataclass
class StepEnd:
    """A step that was taken, as hooks see it.

    Attributes:
        state: after the step.
        step: its number. `SyncWeights` may move the state to a later step; then only this number
            stays.
        outcome: what `Step` returned.
        batches: of the first step, the first microbatch and that of the next step, on the model
            devices. No other step keeps its batches.
        total_steps: of the run.
        is_first: whether it is the first step of this process.
        stop: tells whether the run received a request to stop.
        metrics: of the report that is due; hooks add to it.
        validation_loss: where this step was validated.
        save: whether a checkpoint of this step is written; set by the loop, and by a hook that
            needs one.
        owes_sync: whether the sync of this step was stopped, so that its weights are not the final
            ones.
    """

    state: TrainingState
    step: int
    outcome: tf.Tensor
    batches: Sequence[Sequence[Batch]]
    total_steps: int
    is_first: bool
    stop: StopRequest
    metrics: dict[str, float | str] = field(default_factory=dict)
    validation_loss: float | None = None
    save: bool = False
    owes_sync: bool = False

    @property
    def is_last(self) -> bool:
        """Whether the run is done; a sync may have moved the state to the last step."""
        return self.state.step >= self.total_steps

    def is_due(self, every: int) -> bool:
        """Whether what is done every so many steps is due after this one; never if it owes
        a sync.
        """
        return is_due(every, self.step, self.is_last) and not self.owes_sync


def is_due(every: int, step: int, is_last: bool) -> bool:
    """Whether a step is a multiple of `every` steps, or the last step; never if `every` is 0."""
    return every > 0 and (is_last or step % every == 0)


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


class PeriodicHook:
    """A hook that is due every so many steps and after the last one; 0 turns it off. A subclass has
    `__call__`.
    """

    pause_kind = "other hooks"

    def __init__(self, every: int):
        self._every = every

    def is_due(self, end: StepEnd) -> bool:
        return end.is_due(self._every)


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
        end.outcome.numpy()  # the step is done
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


class WeightSyncProtocol(Protocol):
    """What `SyncWeights` needs of `local_sgd.sync.WeightSync`, which stands above this module."""

    def is_due(self, state: TrainingState) -> bool: ...

    def sync(self, state: TrainingState, stop_requested: Callable[[], bool]) -> bool: ...


class SyncWeights:
    """Averages the weights with those of other jobs (local SGD) and asks for a checkpoint of the
    result.

    Args:
        wait_for_checkpoint: until none is being written. A sync removes the contributions before
            it, which a job needs that is killed and resumes from a checkpoint before them.
    """

    pause_kind = "syncs"

    def __init__(self, weight_sync: WeightSyncProtocol, wait_for_checkpoint: Callable[[], None]):
        self._weight_sync, self._wait_for_checkpoint = weight_sync, wait_for_checkpoint

    def is_due(self, end: StepEnd) -> bool:
        return self._weight_sync.is_due(end.state)

    def __call__(self, end: StepEnd) -> None:
        self._wait_for_checkpoint()
        end.owes_sync = not self._weight_sync.sync(end.state, end.stop.due)
        end.save |= not end.owes_sync


@contextmanager
def reported_on_failure(report: Hook, end: StepEnd) -> Iterator[None]:
    """Report a step if the work in the scope fails, since the step is saved then."""
    try:
        yield
    except Exception:
        if report.is_due(end):
            report(end)
        raise


def periods_of(run: RunConfig) -> dict[str, int]:
    """Return the periods of the parts of an observation in steps; 0 turns one off."""
    return {
        VALIDATION: run.validate_every,
        SAMPLES: run.sample_every,
        EVALUATION: run.evaluate_every,
    }


class NoteDue:
    """Notes in the state what is due after a step, so that a resumed run repeats what fails.

    The hooks that follow do it, and remove it from the notes.

    Args:
        periods: in steps, by part of an observation; 0 turns one off.
    """

    pause_kind = "other hooks"

    def __init__(self, periods: Mapping[str, int]):
        self._periods = periods

    def is_due(self, end: StepEnd) -> bool:
        return bool(due_parts(self._periods, end))

    def __call__(self, end: StepEnd) -> None:
        end.state.pending_observations += (
            Observation(end.state.step, due_parts(self._periods, end)),
        )


def due_parts(periods: Mapping[str, int], end: StepEnd) -> tuple[str, ...]:
    """Return the parts of an observation that are due after a step, by their periods in steps."""
    return tuple(part for part, every in periods.items() if end.is_due(every))


def note_owed(
    state: TrainingState, periods: Mapping[str, int], step: int, total_steps: int
) -> None:
    """Note what was due after the step of an owed sync; the average that the state has now is
    observed.
    """
    is_last = state.step >= total_steps
    parts = tuple(part for part, every in periods.items() if is_due(every, step, is_last))
    state.pending_observations = without(state.pending_observations, step) + (
        (Observation(state.step, parts),) if parts else ()
    )


def note_done(state: TrainingState, part: str) -> None:
    """Remove a part of the observation of this step from what a resumed run repeats."""
    state.pending_observations = without_part(state.pending_observations, state.step, part)


class Validate(PeriodicHook):
    """Measures the losses on held-out utterances; asks for a checkpoint if the loss is the best so
    far.

    Args:
        improves: (validation loss) -> whether it is the best so far.
        report: the hook that follows; it also reports the step if the validation fails, since the
            step is saved then.
    """

    pause_kind = "validation"

    def __init__(
        self, every: int, validation: Validation, improves: Callable[[float], bool], report: Hook
    ):
        super().__init__(every)
        self._validation, self._improves, self._report = validation, improves, report

    def __call__(self, end: StepEnd) -> None:
        with reported_on_failure(self._report, end):
            losses = self._validation(end.state)
        end.validation_loss = losses["loss"]
        end.metrics |= validation_metrics(losses)
        end.save |= self._improves(losses["loss"])
        note_done(end.state, VALIDATION)


class Evaluate(PeriodicHook):
    """Measures the scores of held-out utterances.

    Args:
        report: see `Validate`.
    """

    pause_kind = "evaluation"

    def __init__(self, every: int, evaluator: Evaluator, report: Hook):
        super().__init__(every)
        self._evaluator, self._report = evaluator, report

    def __call__(self, end: StepEnd) -> None:
        with reported_on_failure(self._report, end), end.state.averaged_weights():
            end.metrics |= self._evaluator(end.state.step, None)
        note_done(end.state, EVALUATION)


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


class WriteSamples(PeriodicHook):
    """Writes the model's output for some held-out utterances.

    Args:
        write: (step) -> None: writes them for the weights that the model has.
    """

    pause_kind = "samples"

    def __init__(self, every: int, write: Callable[[int], None]):
        super().__init__(every)
        self._write = write

    def __call__(self, end: StepEnd) -> None:
        with end.state.averaged_weights():
            self._write(end.state.step)
        note_done(end.state, SAMPLES)


class Observe:
    """Takes a snapshot of the weights where a part of an observation is due, and lets the observer
    work on it.

    The step gets a checkpoint, from which a killed run repeats the observation.

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

    def is_due(self, end: StepEnd) -> bool:
        return bool(due_parts(self._periods, end))

    def __call__(self, end: StepEnd) -> None:
        state = end.state
        due = Observation(state.step, due_parts(self._periods, end))
        state.pending_observations += (due,)
        if not (end.save or end.is_last):
            self._add_provisional(state.step)
        end.save = True
        if self._observer.wait(lambda: end.stop.requested or end.stop.due(), due.step):
            self._snapshot.take()
            self._observer.begin(due)
