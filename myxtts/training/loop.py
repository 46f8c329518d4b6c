"""The outer loop: what happens when, and why in this order."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import tensorflow as tf

from myxtts.batch import Batch
from myxtts.clock import Clock, Times
from myxtts.data.feed import StopArrived
from myxtts.data.pipeline import ProducedBatch
from myxtts.errors import PlacementError, TrainingError
from myxtts.training.hooks import Hook, StepEnd
from myxtts.training.observation import OBSERVER, Observer
from myxtts.training.schedule import Rates, Schedule
from myxtts.training.state import TrainingState
from myxtts.training.step import SKIPPED
from myxtts.training.stop_request import StopRequest

CHECKPOINTS = "checkpoints"  # the kind of their pauses

Save = Callable[[TrainingState], object]
"""(state): writes a checkpoint."""


class StepFunction(Protocol):
    """A `Step`, or what takes its place. The loop calls TensorFlow through it and the state alone.

    A call queues step `number` (from 1) and the hand-over of the last entry of `following`, and may
    return before the device has done either. It returns the outcome of the step, and the microbatch
    that is `first` of the next call.
    """

    def hand_over(self, features: Sequence[Batch]) -> list[Batch]:
        """Copy a microbatch to the model devices: the first one, before the first step."""
        ...

    def __call__(
        self,
        first: Sequence[Batch],
        following: Sequence[Sequence[Batch]],
        number: int,
        rates: Rates,
        stop: bool,
    ) -> tuple[tf.Tensor, list[Batch]]:
        """Take a step on `first` and on all but the last of `following`; see `Step`."""
        ...

    def left_unchanged(self, error: tf.errors.OpError) -> bool:
        """Return whether a call that failed with this error has left the state as it was before the
        step.
        """
        ...

    def synchronize(self, outcome: tf.Tensor) -> None:
        """Wait until the device has finished the step of an outcome."""
        ...

    def read(self, outcome: tf.Tensor) -> dict[str, float]:
        """Return the losses of an outcome by name; waits for the device."""
        ...


class BatchFeed(Protocol):
    """A `ReplicaFeed`, or what takes its place."""

    @property
    def is_ready(self) -> bool:
        """Whether the next batches can be taken without waiting."""
        ...

    def __next__(self) -> tuple[ProducedBatch, ...]: ...


def train(
    state: TrainingState,
    step: StepFunction,
    feed: BatchFeed,
    schedule: Schedule,
    hooks: Sequence[Hook],
    save: Save,
    clock: Clock,
    stop: StopRequest,
    observer: Observer | None = None,
) -> None:
    """Train to the end of the schedule or to a stop request; leave a checkpoint of the last step.

    After a step at which something is due, in this order: read the losses (a non-finite loss is
    found before anything is written), run the hooks that are due in the order of the list, and
    save. Saving comes last, so that a hook may ask for a checkpoint, and the checkpoint knows the
    validation of its step. The loop waits for the device only where a report, a hook or a
    checkpoint is due, and where the feed has no batch.

    Each step hands over the first microbatch of the next one, so the loop is one batch ahead of the
    step.

    Whatever else ends the loop, the steps before it are saved, unless the error came from within a
    step: then the state may have a part of that step. (It has none if the step waited for a worker
    that is lost, so that is saved, too.) The checkpoints before it are intact in any case.

    Results of the observer are applied before a step, when all that was due after the one before is
    done.

    Args:
        observer: validates and writes samples during training; its hook begins that.

    Raises:
        NonFiniteLoss, StepOutOfMemory: of a step, which is not saved.
        UserError: a batch could not be made, or a hook or the observer failed.
        ObserverFailed: the observer failed by a defect.
    """
    first_step, saved_step = state.step + 1, state.step
    ahead, first, outcome = LookAhead(feed, step, clock), None, None
    senders: set[str] = set()
    total_skipped = 0.0  # updates up to the report before
    is_whole = True  # the state is that of the end of a step
    try:
        while state.step < schedule.total_steps and not stop.due():
            if observer is not None:
                observer.poll()
            try:
                taken = ahead.take(running=outcome, is_last=state.step + 1 >= schedule.total_steps)
            except StopArrived:
                break
            planned_step = taken.microbatches[0][0].planned.step
            is_whole = False
            try:
                first = first or step.hand_over(taken.features[0])
                outcome, handed = step(
                    first, taken.features[1:], state.step + 1, schedule, stop.requested
                )
            except tf.errors.ResourceExhaustedError as error:
                raise StepOutOfMemory(state.step + 1, planned_step.bucket, error) from error
            except tf.errors.OpError as error:
                is_whole = step.left_unchanged(error)  # another worker gave up or died
                raise
            state.advance(planned_step)
            is_whole = True
            stop.observe(outcome)
            clock.finish_step(planned_step.audio_s, planned_step.padded_s, taken.times)
            is_prepared, senders = senders >= taken.senders, senders | taken.senders
            del taken  # frees its features before the next ones are taken

            is_first = state.step == first_step
            checked = (first, handed) if is_first else ()
            end = StepEnd(state, state.step, outcome, checked, schedule.total_steps, is_first, stop)
            first = handed
            log, end.save = end.is_due(schedule.log_every), end.is_due(schedule.checkpoint_every)
            if is_prepared and not (log or end.save or any(hook.is_due(end) for hook in hooks)):
                continue
            require_finite(state)
            if log:
                epoch, learning_rate = (
                    planned_step.position.epoch,
                    schedule.learning_rate(end.step - 1),
                )
                losses = step.read(outcome)
                if SKIPPED in losses:
                    total_skipped, losses[SKIPPED] = (
                        losses[SKIPPED],
                        losses[SKIPPED] - total_skipped,
                    )
                end.metrics = {"epoch": epoch, **losses, "learning_rate": learning_rate}
                interval = clock.report() if is_prepared else clock.forget()
                end.metrics |= interval.metrics()
                end.metrics["remaining_s"] = clock.remaining_s(
                    interval, schedule.total_steps - state.step
                )
            for hook in hooks:
                if hook.is_due(end):
                    with clock.pause(hook.pause_kind):
                        hook(end)
            if end.save:
                with clock.pause(CHECKPOINTS):
                    save(state)
                saved_step = state.step
            if not is_prepared and not log:
                # most of its time is tracing, or preparing the step for copies from another data
                # device
                clock.forget()
    except (NonFiniteLoss, StepOutOfMemory, PlacementError):
        raise  # the state must not be saved
    except Exception:  # of a batch, a hook or the observer, such as a data device out of memory
        if is_whole:
            save_unsaved(state, saved_step, save)
        raise
    with clock.pause(CHECKPOINTS):
        save_unsaved(state, saved_step, save)
    with clock.pause(OBSERVER):
        is_done = observer is None or observer.wait(lambda: stop.requested or stop.due())
        if not is_done or state.pending_observations:
            stop.settle()


def save_unsaved(state: TrainingState, saved_step: int, save: Save) -> None:
    """Save the last step, unless there is a checkpoint of it."""
    if saved_step < state.step:
        require_finite(state)
        save(state)


class StepBatches(NamedTuple):
    """The batches of a step.

    Attributes:
        microbatches: one entry for each accumulated gradient.
        next_first: the first microbatch of the next step; of this step where there is none.
    """

    microbatches: list[tuple[ProducedBatch, ...]]
    next_first: tuple[ProducedBatch, ...]

    @property
    def features(self) -> list[list[Batch]]:
        """Features of the microbatches of the step, and of the one that the step hands over."""
        return [
            [batch.features for batch in batches]
            for batches in (*self.microbatches, self.next_first)
        ]

    @property
    def senders(self) -> set[str]:
        """Data devices of the microbatch that the step hands over; TensorFlow prepares the step for
        each anew.
        """
        return {batch.times.producer for batch in self.next_first}

    @property
    def times(self) -> list[Times]:
        """Times of the batches of the step."""
        return [batch.times for batches in self.microbatches for batch in batches]


class LookAhead:
    """Takes the batches of one step after the other from a feed, and the first microbatch of the
    step after it.

    A wait for the feed counts from the moment when the device has finished the running step: until
    then, it has work.

    Args:
        step: waits for the device.
        clock: counts the waits.
    """

    def __init__(self, feed: BatchFeed, step: StepFunction, clock: Clock):
        self._feed, self._step, self._clock = feed, step, clock
        self._next: tuple[ProducedBatch, ...] | None = None
        self._error: Exception | None = None

    def take(self, running: tf.Tensor | None, is_last: bool) -> StepBatches:
        """Return the batches of the next step.

        Args:
            running: outcome of the step before, if there is one.
            is_last: no step follows, so none of its batches is taken.

        Raises:
            An error of the feed in place of a batch of this step; in place of the batch ahead, the
            next call raises it.
        """
        if self._error is not None:
            raise self._error
        microbatches = [self._next or self._take(running)]
        while not microbatches[-1][0].planned.last:
            microbatches.append(self._take(running))
        self._next = None
        if not is_last:
            try:
                self._next = self._take(running)
            except Exception as error:  # raised after this step, in place of the next one
                self._error = error
        return StepBatches(microbatches, self._next or microbatches[0])

    def _take(self, running: tf.Tensor | None) -> tuple[ProducedBatch, ...]:
        if running is not None and not self._feed.is_ready:
            self._step.synchronize(running)
        with self._clock.wait():
            return next(self._feed)


def require_finite(state: TrainingState) -> None:
    """Wait for the device and raise NonFiniteLoss with the first step whose loss or gradient was
    not finite.
    """
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
