"""The outer loop: what happens when, and why in this order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from myxtts.clock import Clock
from myxtts.data.pipeline import ReplicaBatches
from myxtts.errors import TrainingError, UserError
from myxtts.training.state import TrainingState
from myxtts.training.step import Step
from myxtts.training.stop_request import StopRequest


@dataclass(frozen=True)
class Periods:
    """Steps between two actions of a kind; 0 turns it off. All are due at the last step."""

    log: int
    validate: int
    sample: int
    checkpoint: int

    def due(self, period: int, step: int, last: bool) -> bool:
        return period > 0 and (last or step % period == 0)


@dataclass(frozen=True)
class Actions:
    """What the loop calls between two steps.

    Attributes:
        first_step: (state, rounds of the step, outcome); looks at the devices.
        validate: (state) -> losses on held-out utterances, `loss` among them.
        report: (state, metrics).
        sample: (state); speaks and draws.
        save: (state, validation loss or None); writes a checkpoint.
        improves: (validation loss) -> whether it is the best so far.
        merge_is_due: (state) -> whether weights are to be merged with those of other jobs.
        merge: (state, stopped) -> whether they were; not where `stopped()` came to be true while it waited.
    """

    first_step: Callable[[TrainingState, Sequence[ReplicaBatches], tf.Tensor], None]
    validate: Callable[[TrainingState], dict[str, float]]
    report: Callable[[TrainingState, dict[str, float | str]], None]
    sample: Callable[[TrainingState], None]
    save: Callable[[TrainingState, float | None], object]
    improves: Callable[[float], bool]
    merge_is_due: Callable[[TrainingState], bool] = lambda state: False
    merge: Callable[[TrainingState, Callable[[], bool]], bool] | None = None


def only_steps(first_step) -> Actions:
    """Of a worker that leaves all else to the chief: nothing but the first look at its devices."""
    return Actions(
        first_step=first_step,
        validate=None,
        report=lambda state, metrics: None,
        sample=None,
        save=lambda state, loss: None,
        improves=None,
    )


@dataclass(frozen=True)
class Schedule:
    """What changes with the steps done so far."""

    total_steps: int
    learning_rate: Callable[[int], float]
    ema_decay: Callable[[int], float]


def train(
    state: TrainingState,
    step: Step,
    feed: Iterator[ReplicaBatches],
    schedule: Schedule,
    periods: Periods,
    actions: Actions,
    clock: Clock,
    stop: StopRequest,
) -> None:
    """Train to the end of the schedule or a stop request; leaves a checkpoint of the last step.

    After a step, in this order: read the losses (a non-finite one is found before anything is
    written), merge, validate, report, sample, and the checkpoint last, so that it knows whether the
    validation was the best. The loop waits for the device only where an action needs it.

    Raises:
        NonFiniteLoss: the checkpoints before it are intact.
        StepOutOfMemory: likewise.
        UserError: a batch could not be made; a checkpoint of the steps before it was written.
    """
    if actions.merge_is_due(state) and actions.merge(state, stop.due):  # the run was stopped while it waited for that
        actions.save(state, None)
    started_at = saved_at = state.step
    while state.step < schedule.total_steps and not stop.due():
        try:
            with clock.wait():
                microbatches = next_step(feed)
        except UserError:  # an utterance could not be read: what was learnt before it is kept
            save_unsaved(state, saved_at, actions)
            raise
        planned = microbatches[0][0].planned.step
        learning_rate, ema_decay = schedule.learning_rate(state.step), schedule.ema_decay(state.step)
        try:
            outcome = step(batches_of(microbatches), state.step + 1, learning_rate, ema_decay, stop.asked)
        except tf.errors.ResourceExhaustedError as error:
            raise StepOutOfMemory(state.step + 1, planned.bucket, error) from error
        state.advance(planned)
        stop.look(outcome)
        clock.finish_step(planned.audio_s, planned.padded_s, [one.times for own in microbatches for one in own])
        if state.step == started_at + 1:
            actions.first_step(state, microbatches, outcome)

        log, validate, sample, checkpoint = (
            periods.due(period, state.step, last=state.step == schedule.total_steps)
            for period in (periods.log, periods.validate, periods.sample, periods.checkpoint)
        )
        if state.step == started_at + 1 and not log:
            clock.forget()  # most of the first step's time is tracing
        merge = actions.merge_is_due(state)
        if not (merge or log or validate or sample or checkpoint):
            continue
        require_finite(state)
        metrics, loss = {}, None
        if log:
            metrics = {"epoch": planned.position.epoch, **step.read(outcome), "learning_rate": learning_rate}
            metrics |= clock.report().metrics()
        with clock.pause():
            merged = merge and merge_or_save(state, saved_at, actions, stop)
            if validate:
                losses = actions.validate(state)
                loss = losses["loss"]
                metrics |= {f"validation_{name}": value for name, value in losses.items()}
            if metrics:
                actions.report(state, metrics)
            if sample:
                actions.sample(state)
            if checkpoint or merged or (loss is not None and actions.improves(loss)):
                actions.save(state, loss)
                saved_at = state.step
    save_unsaved(state, saved_at, actions)


def merge_or_save(state: TrainingState, saved_at: int, actions: Actions, stop: StopRequest) -> bool:
    """Whether a merge was taken; what was learnt before one that fails is kept."""
    try:
        return actions.merge(state, stop.due)
    except UserError:
        save_unsaved(state, saved_at, actions)
        raise


def save_unsaved(state: TrainingState, saved_at: int, actions: Actions) -> None:
    """A checkpoint of the last step, if there is none."""
    if saved_at < state.step:
        require_finite(state)
        actions.save(state, None)


def next_step(feed: Iterator[ReplicaBatches]) -> list[ReplicaBatches]:
    """The rounds of one step."""
    microbatches = [next(feed)]
    while not microbatches[-1][0].planned.last:
        microbatches.append(next(feed))
    return microbatches


def batches_of(microbatches: Sequence[ReplicaBatches]) -> list[list[dict[str, tf.Tensor]]]:
    """What a step takes."""
    return [[delivery.batch for delivery in one] for one in microbatches]


def require_finite(state: TrainingState) -> None:
    """Wait for the device, and refuse to go on after a non-finite loss.

    Raises:
        NonFiniteLoss: with the step where it began.
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
