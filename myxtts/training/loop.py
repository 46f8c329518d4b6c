"""The outer loop: what happens when, and why in this order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from myxtts.clock import Clock
from myxtts.data.pipeline import ReplicaBatches
from myxtts.errors import PlacementError, TrainingError, UserError
from myxtts.training.hooks import Hook, StepEnd
from myxtts.training.state import TrainingState
from myxtts.training.stop_request import StopRequest

CHECKPOINTS = "checkpoints"  # the kind of their pauses

Save = Callable[[TrainingState, float | None], object]
"""(state, validation loss or None): writes a checkpoint."""


class StepFunction(Protocol):
    """A `Step`, or a wrapper of one."""

    def __call__(self, *arguments: Any) -> tf.Tensor: ...

    def read(self, outcome: tf.Tensor) -> dict[str, float]: ...


@dataclass(frozen=True)
class Schedule:
    """What depends on the step.

    Attributes:
        total_steps: length of the run.
        log_every: steps between two reports.
        checkpoint_every: steps between two checkpoints; 0 writes only those that hooks ask for, and one at the end.
        learning_rate, ema_decay: by the number of steps done before.
    """

    total_steps: int
    log_every: int
    checkpoint_every: int
    learning_rate: Callable[[int], float]
    ema_decay: Callable[[int], float]


def train(
    state: TrainingState,
    step: StepFunction,
    feed: Iterator[ReplicaBatches],
    schedule: Schedule,
    hooks: Sequence[Hook],
    save: Save,
    clock: Clock,
    stop: StopRequest,
) -> None:
    """Train to the end of the schedule or to a stop request; leave a checkpoint of the last step.

    After a step at which something is due, in this order: read the losses (a non-finite loss is found before anything
    is written), run the hooks that are due in the order of the list, and save. Saving comes last, so that a hook may
    ask for a checkpoint, and the checkpoint knows the validation of its step. The loop waits for the device only where
    a report, a hook or a checkpoint is due.

    Raises:
        NonFiniteLoss: the checkpoints before it are intact.
        StepOutOfMemory: likewise.
        UserError: a batch could not be made or a hook failed; a checkpoint of the steps before it was written.
    """
    first_step, saved_step = state.step + 1, state.step
    try:
        while state.step < schedule.total_steps and not stop.due():
            with clock.wait():
                microbatches = next_microbatches(feed)
            planned_step = microbatches[0][0].planned.step
            learning_rate, ema_decay = schedule.learning_rate(state.step), schedule.ema_decay(state.step)
            try:
                outcome = step(batches_of(microbatches), state.step + 1, learning_rate, ema_decay, stop.requested)
            except tf.errors.ResourceExhaustedError as error:
                raise StepOutOfMemory(state.step + 1, planned_step.bucket, error) from error
            state.advance(planned_step)
            stop.observe(outcome)
            times = [device_batch.times for replica_batches in microbatches for device_batch in replica_batches]
            clock.finish_step(planned_step.audio_s, planned_step.padded_s, times)

            is_first = state.step == first_step
            end = StepEnd(state, state.step, outcome, microbatches, schedule.total_steps, is_first, stop)
            log, checkpoint = end.is_due(schedule.log_every), end.is_due(schedule.checkpoint_every)
            if not (is_first or log or checkpoint or any(hook.is_due(end) for hook in hooks)):
                continue
            require_finite(state)
            if log:
                epoch = planned_step.position.epoch
                end.metrics = {"epoch": epoch, **step.read(outcome), "learning_rate": learning_rate}
                interval = clock.report()
                end.metrics |= interval.metrics()
                end.metrics["remaining_s"] = clock.remaining_s(interval, schedule.total_steps - state.step)
            for hook in hooks:
                if hook.is_due(end):
                    with clock.pause(hook.pause_kind):
                        hook(end)
            if checkpoint or end.save:
                with clock.pause(CHECKPOINTS):
                    save(state, end.validation_loss)
                saved_step = state.step
            if is_first and not log:
                clock.forget()  # most of the first step's time is tracing
    except (NonFiniteLoss, StepOutOfMemory, PlacementError):
        raise  # the state must not be saved
    except UserError:
        save_unsaved(state, saved_step, save)
        raise
    with clock.pause(CHECKPOINTS):
        save_unsaved(state, saved_step, save)


def save_unsaved(state: TrainingState, saved_step: int, save: Save) -> None:
    """Save the last step, unless there is a checkpoint of it."""
    if saved_step < state.step:
        require_finite(state)
        save(state, None)


def next_microbatches(feed: Iterator[ReplicaBatches]) -> list[ReplicaBatches]:
    """Return the batches of one step: one entry for each accumulated gradient."""
    microbatches = [next(feed)]
    while not microbatches[-1][0].planned.last:
        microbatches.append(next(feed))
    return microbatches


def batches_of(microbatches: Sequence[ReplicaBatches]) -> list[list[dict[str, tf.Tensor]]]:
    """Return what `Step` takes."""
    return [[device_batch.batch for device_batch in replica_batches] for replica_batches in microbatches]


def require_finite(state: TrainingState) -> None:
    """Wait for the device and raise NonFiniteLoss with the first step whose loss or gradient was not finite."""
    bad_step = int(state.bad_step.numpy())
    if bad_step:
        raise NonFiniteLoss(bad_step)


class NonFiniteLoss(TrainingError):
    """The loss or its gradient was NaN or infinite at `step`, for the first time."""

    def __init__(self, step: int):
        super().__init__(f"the loss of step {step} is not finite")
        self.step = step


class StepOutOfMemory(TrainingError):
    """Step `step`, on a batch of `bucket`, did not fit into memory."""

    def __init__(self, step: int, bucket: int, error: tf.errors.ResourceExhaustedError):
        super().__init__(f"step {step} is out of memory: {error.message}")
        self.step, self.bucket, self.cause = step, bucket, error
