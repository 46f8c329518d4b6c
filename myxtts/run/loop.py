"""The outer loop of a run: what happens when, and why in this order.

What comes in are a state, a step and a feed, and what is to be done between steps. For each step,
the main thread takes its batches from the feed, has threads copy them to the model devices, queues
the step there and counts it. What goes out are the trained state and its last checkpoint.

After a step at which something is due, in this order: read the losses (a non-finite loss is found
before anything is written), call the hooks that are due in the order of their list, and save.
Saving comes last, because a hook may ask for a checkpoint, and a checkpoint records what hooks did.
The loop waits for the device only where a report, a hook or a checkpoint is due, and where the feed
has no batch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import tensorflow as tf

from myxtts.base.clock import Clock
from myxtts.base.errors import TrainingError
from myxtts.batches.plan import PlannedStep
from myxtts.devicefeed.errors import PlacementError
from myxtts.devicefeed.feed import StopArrived
from myxtts.devicefeed.handover import LookAhead, StepBatches
from myxtts.devicefeed.producer import ReplicaFeed
from myxtts.run.hooks import Hook, StepEnd
from myxtts.run.observation import OBSERVER, Observer
from myxtts.run.schedule import Schedule
from myxtts.run.state import TrainingState
from myxtts.run.step import SKIPPED, Step
from myxtts.run.stop_request import StopRequest

CHECKPOINTS = "checkpoints"  # kind of the pauses for writing checkpoints

Save = Callable[[TrainingState], object]
"""(state): writes a checkpoint."""


# One round of the loop is one step. First the result of an observation is applied, if there is one.
# Then the batches are taken, as far ahead as the hand-over needs them. While the feed is empty, the
# loop waits here. Then the step is queued on the devices, within a savepoint that knows whether a
# failed step has changed the state. The call returns before the devices have computed it. Then the
# step is counted, and what is due between steps is done. Most rounds therefore only queue work, and
# the host runs ahead of the devices by some steps. A deal of new shares replaces the batches that
# were taken ahead. After the last step the loop waits for the observer, and the savepoint saves.
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
    could not be made, or a hook or the observer failed; ObserverFailed for a defect of the latter.
    """
    ahead = LookAhead(feed, step.hand_over, clock.wait, step.synchronize)
    intervals = Intervals(clock, schedule)
    first_step = state.step + 1
    outcome = None
    with Savepoint(state, save, clock) as savepoint:
        while state.step < schedule.total_steps and not stop.due():
            # Everything due after the previous step is done by now. So the result of an observation
            # is applied to a state at rest.
            if observer is not None:
                observer.poll()
                if stop.is_early:
                    break
            try:
                batches = ahead.take(outcome, schedule.total_steps - state.step)
            except StopArrived:
                break

            with savepoint.advance(step, batches.tag.step):
                outcome = step(batches, state.step + 1, schedule, stop.requested)
            stop.observe(outcome)
            intervals.finish_step(batches)
            end = StepEnd(state, outcome, batches.tag.step, schedule.total_steps, stop)
            if end.step == first_step:
                end.batches = batches.newest

            # The batches of this step are free before the next ones are taken.
            del batches
            between_steps(end, step, schedule, hooks, intervals, savepoint, clock)
            if end.is_redealt:
                # The batches that were taken ahead have the former shares.
                ahead = LookAhead(feed, step.hand_over, clock.wait, step.synchronize)
                clock.drop_taken()
            # At the first step it holds its batches.
            del end

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
    # Most steps end here, while the device still works on them. The first step does not: it was
    # traced meanwhile, which does not count, and the clock has to forget it below.
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

        with Savepoint(state, save, clock) as savepoint:
            with savepoint.advance(step, planned):
                outcome = step(...)

    A state with a non-finite loss or on a wrong device is worth nothing. A step that fails may
    leave a part of itself in the state, unless a worker was lost or its gradients lacked memory.
    """

    def __init__(self, state: TrainingState, save: Save, clock: Clock):
        self._state, self._save, self._clock = state, save, clock
        self._saved_step = state.step
        self._is_complete = True

    def __enter__(self) -> "Savepoint":
        return self

    # A second Ctrl-C must end the program at once, so nothing is saved. A worthless or incomplete
    # state is not saved, and neither is one that is on the disk already.
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
        except tf.errors.OpError as error:
            self._is_complete = step.left_unchanged()
            if isinstance(error, tf.errors.ResourceExhaustedError):
                raise StepOutOfMemory(self._state.step + 1, planned.bucket, error) from error
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

    The first step is traced, which does not recur: it enters no rate, and counts as a pause.
    """

    def __init__(self, clock: Clock, schedule: Schedule):
        self._clock, self._schedule = clock, schedule
        self._skipped_updates = 0.0
        self._has_begun = False
        self.counts = True

    def finish_step(self, batches: StepBatches) -> None:
        """Count a step."""
        planned = batches.tag.step
        self._clock.finish_step(planned.audio_s, planned.padded_s, batches.times)
        self.counts, self._has_begun = self._has_begun, True

    def report(self, end: StepEnd, losses: dict[str, float]) -> dict[str, float | str]:
        """Return the metrics of the interval that a step with these losses ends."""
        if SKIPPED in losses:
            # The step counts skipped updates since the start of this process, and a report counts
            # those since the report before.
            skipped_updates = losses[SKIPPED]
            losses = losses | {SKIPPED: skipped_updates - self._skipped_updates}
            self._skipped_updates = skipped_updates
        interval = self._clock.report() if self.counts else self._clock.forget()
        shares = end.state.batch_shares
        remaining_steps = self._schedule.total_steps - end.state.step
        return {
            "epoch": end.planned.position.epoch,
            **losses,
            "learning_rate": self._schedule.learning_rate(end.step - 1),
            **interval.metrics(),
            **{f"batch_share_{i}": share / sum(shares) for i, share in enumerate(shares)},
            "remaining_s": self._clock.remaining_s(interval, remaining_steps),
        }


def require_finite(state: TrainingState) -> None:
    """Wait for the device; raise NonFiniteLoss for the first step that was not finite."""
    # Each step notes on the device whether it was finite. Reading the note waits for all steps that
    # are queued.
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
