"""The outer loop: what happens when, and why in this order.

After a step at which something is due, in this order: read the losses (a non-finite loss is found
before anything is written), call the hooks that are due in the order of their list, and save.
Saving comes last, because a hook may ask for a checkpoint, and a checkpoint records what hooks did.
The loop waits for the device only where a report, a hook or a checkpoint is due, and where the feed
has no batch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple

import tensorflow as tf

from myxtts.batch import Batch
from myxtts.clock import Clock
from myxtts.data.batch_plan import PlannedStep
from myxtts.data.feed import StopArrived
from myxtts.data.pipeline import ProducedBatch, ReplicaFeed
from myxtts.errors import PlacementError, TrainingError
from myxtts.training.hooks import Hook, StepEnd
from myxtts.training.observation import OBSERVER, Observer
from myxtts.training.schedule import Schedule
from myxtts.training.state import TrainingState
from myxtts.training.step import SKIPPED, Step
from myxtts.training.stop_request import StopRequest

CHECKPOINTS = "checkpoints"  # kind of the pauses for them

Save = Callable[[TrainingState], object]
"""(state): writes a checkpoint."""


def train(
    state: TrainingState,
    step: Step,
    feed: ReplicaFeed,
    schedule: Schedule,
    hooks: Sequence[Hook],
    save: Save,
    clock: Clock,
    stop: StopRequest,
    observer: Observer | None = None,
) -> None:
    """Train to the end of the schedule or to a stop request; leave a checkpoint of the last step.

    Raises NonFiniteLoss or StepOutOfMemory for a step, which is not saved; UserError if a batch
    could not be made, or a hook or the observer failed; ObserverFailed for a defect in there.
    """
    ahead = LookAhead(feed, step, clock)
    intervals = Intervals(clock, schedule)
    first_step = state.step + 1
    first, outcome = None, None
    with Savepoint(state, save, clock) as savepoint:
        while state.step < schedule.total_steps and not stop.due():
            # All that was due after the previous step is done here, so that the result of an
            # observation is applied to a state at rest.
            if observer is not None:
                observer.poll()
                if stop.is_early:
                    break
            try:
                batches = ahead.take(outcome, is_last=state.step + 1 >= schedule.total_steps)
            except StopArrived:
                break

            # The step copies the first microbatch of the next step while it runs. A copy of its own
            # would block until the device is done.
            with savepoint.advance(step, batches.planned):
                first = first or step.hand_over(batches.features[0])
                outcome, next_first = step(
                    first, batches.features[1:], state.step + 1, schedule, stop.requested
                )
            stop.observe(outcome)
            intervals.finish_step(batches)
            end = StepEnd(state, outcome, batches.planned, schedule.total_steps, stop)
            if end.step == first_step:
                end.batches = (first, next_first)

            # The features of this step are free before the next ones are taken.
            first = next_first
            del batches
            between_steps(end, step, schedule, hooks, intervals, savepoint, clock)

    # The last observation may take long. A request to stop leaves it to the resumed run.
    with clock.pause(OBSERVER):
        is_done = observer is None or observer.wait(lambda: stop.requested or stop.due())
    if not is_done or state.pending_observations:
        stop.count_local_request()


def between_steps(
    end: StepEnd,
    step: Step,
    schedule: Schedule,
    hooks: Sequence[Hook],
    intervals: "Intervals",
    savepoint: "Savepoint",
    clock: Clock,
) -> None:
    """Report, call the hooks and save, as far as they are due after a step."""
    is_reported = end.is_due(schedule.log_every)
    end.save = end.is_due(schedule.checkpoint_every)
    is_anything_due = is_reported or end.save or any(hook.is_due(end) for hook in hooks)
    # Most steps end here, while the device still works on them. A step whose interval does not
    # count was prepared (traced) meanwhile, and the clock has to forget it below.
    if intervals.counts and not is_anything_due:
        return
    require_finite(end.state)
    if is_reported:
        end.metrics = intervals.report(end, step.read(end.outcome))
    for hook in hooks:
        if hook.is_due(end):
            with clock.pause(hook.pause_kind):
                hook(end)
    if end.save:
        savepoint.save()
    if not is_reported and not intervals.counts:
        clock.forget()


class Savepoint:
    """Saves the state of a run at the end of its scope, whatever ends it, if it may be saved.

    A state with a non-finite loss or on a wrong device is worth nothing. An error from within a
    step may leave a part of the step in the state; a step that waited for a worker that is lost
    leaves none. Earlier checkpoints are intact in any case.
    """

    def __init__(self, state: TrainingState, save: Save, clock: Clock):
        self._state, self._save, self._clock = state, save, clock
        self._saved_step = state.step
        self._is_complete = True

    def __enter__(self) -> "Savepoint":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_interrupted = kind is not None and not issubclass(kind, Exception)
        is_unusable = kind is not None and issubclass(kind, (NonFiniteLoss, PlacementError))
        is_saved = self._saved_step >= self._state.step
        if self._is_complete and not (is_interrupted or is_unusable or is_saved):
            require_finite(self._state)
            self.save()

    @contextmanager
    def advance(self, step: Step, planned: PlannedStep) -> Iterator[None]:
        """Take the step in the scope; count it in the state if it succeeds."""
        self._is_complete = False
        try:
            yield
        except tf.errors.ResourceExhaustedError as error:
            raise StepOutOfMemory(self._state.step + 1, planned.bucket, error) from error
        except tf.errors.OpError as error:
            self._is_complete = step.left_unchanged(error)
            raise
        self._state.advance(planned)
        self._is_complete = True

    def save(self) -> None:
        """Save the state as it is after a step."""
        with self._clock.pause(CHECKPOINTS):
            self._save(self._state)
        self._saved_step = self._state.step


class Intervals:
    """Times the intervals between two reports, and knows whether the newest step `counts`.

    TensorFlow prepares the step when it gets the first batch of a data device: it traces, or plans
    the copies from there. This takes seconds and does not recur, so an interval that ends with such
    a step enters no rate; the clock counts it as a pause.
    """

    def __init__(self, clock: Clock, schedule: Schedule):
        self._clock, self._schedule = clock, schedule
        self._senders: set[str] = set()
        self._skipped_updates = 0.0
        self.counts = True

    def finish_step(self, batches: "StepBatches") -> None:
        """Count a step."""
        planned = batches.planned
        times = [batch.times for batch in chain.from_iterable(batches.microbatches)]
        self._clock.finish_step(planned.audio_s, planned.padded_s, times)
        senders = {batch.times.producer for batch in batches.next_first}
        self.counts = self._senders >= senders
        self._senders |= senders

    def report(self, end: StepEnd, losses: dict[str, float]) -> dict[str, float | str]:
        """Return the metrics of the interval that a step with these losses ends."""
        if SKIPPED in losses:
            # The step counts since this process started, and a report since the one before.
            skipped_updates = losses[SKIPPED]
            losses = losses | {SKIPPED: skipped_updates - self._skipped_updates}
            self._skipped_updates = skipped_updates
        interval = self._clock.report() if self.counts else self._clock.forget()
        remaining_steps = self._schedule.total_steps - end.state.step
        return {
            "epoch": end.planned.position.epoch,
            **losses,
            "learning_rate": self._schedule.learning_rate(end.step - 1),
            **interval.metrics(),
            "remaining_s": self._clock.remaining_s(interval, remaining_steps),
        }


class StepBatches(NamedTuple):
    """The microbatches of a step, and the first one of the next step; at the end any."""

    microbatches: list[tuple[ProducedBatch, ...]]
    next_first: tuple[ProducedBatch, ...]

    @property
    def planned(self) -> PlannedStep:
        """The step in the plan."""
        return self.microbatches[0][0].planned.step

    @property
    def features(self) -> list[list[Batch]]:
        """Features of the microbatches of the step, and of the one that the step hands over."""
        features = []
        for batches in (*self.microbatches, self.next_first):
            features.append([batch.features for batch in batches])
        return features


class LookAhead:
    """Takes the batches of one step after the other from a feed, and the first microbatch ahead.

    A wait for the feed counts from the moment when the device has finished the running step: until
    then, it has work.
    """

    def __init__(self, feed: ReplicaFeed, step: Step, clock: Clock):
        self._feed, self._step, self._clock = feed, step, clock
        self._next: tuple[ProducedBatch, ...] | None = None
        self._error: Exception | None = None

    def take(self, running: tf.Tensor | None, is_last: bool) -> StepBatches:
        """Return the batches of the next step; raise an error of the feed instead of a batch of it.

        `running` is the outcome of the previous step. After the last step no batch is taken.
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
            except Exception as error:
                # This step still has its batches; the error is raised instead of the next one.
                self._error = error
        return StepBatches(microbatches, self._next or microbatches[0])

    def _take(self, running: tf.Tensor | None) -> tuple[ProducedBatch, ...]:
        if running is not None and not self._feed.is_ready:
            self._step.synchronize(running)
        with self._clock.wait():
            return next(self._feed)


def require_finite(state: TrainingState) -> None:
    """Wait for the device; raise NonFiniteLoss for the first step that was not finite."""
    if bad_step := int(state.bad_step.numpy()):
        raise NonFiniteLoss(bad_step)


class NonFiniteLoss(TrainingError):
    """The loss or its gradient was NaN or infinite at `step`, for the first time."""

    def __init__(self, step: int):
        super().__init__(f"the loss of step {step} is not finite")
        self.step = step


class StepOutOfMemory(tf.errors.ResourceExhaustedError):
    """Step `step`, on a batch of `bucket`, did not fit into memory."""

    def __init__(self, step: int, bucket: int, error: tf.errors.ResourceExhaustedError):
        super().__init__(error.node_def, error.op, error.message)
        self.step, self.bucket = step, bucket
