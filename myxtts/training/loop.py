"""The outer loop: what happens when, and why in this order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

from myxtts.clock import Clock
from myxtts.data.producer import Delivery
from myxtts.errors import TrainingError, UserError
from myxtts.training.state import TrainingState
from myxtts.training.step import Step
from myxtts.training.stop import StopRequest


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
        first_step: (state, batches of the step, outcome); looks at the devices.
        validate: (state) -> losses on held-out utterances, `loss` among them.
        report: (state, metrics).
        sample: (state); speaks and draws.
        save: (state, validation loss or None); writes a checkpoint.
        improves: (validation loss) -> whether it is the best so far.
    """

    first_step: Callable[[TrainingState, Sequence[Delivery], tf.Tensor], None]
    validate: Callable[[TrainingState], dict[str, float]]
    report: Callable[[TrainingState, dict[str, float | str]], None]
    sample: Callable[[TrainingState], None]
    save: Callable[[TrainingState, float | None], object]
    improves: Callable[[float], bool]


@dataclass(frozen=True)
class Schedule:
    """What changes with the steps done so far."""

    total_steps: int
    learning_rate: Callable[[int], float]
    ema_decay: Callable[[int], float]


def train(
    state: TrainingState,
    step: Step,
    feed: Iterator[Delivery],
    schedule: Schedule,
    periods: Periods,
    actions: Actions,
    clock: Clock,
    stop: StopRequest,
) -> None:
    """Train to the end of the schedule or a stop request; leaves a checkpoint of the last step.

    After a step, in this order: read the losses (a non-finite one is found before anything is
    written), validate, report, sample, and the checkpoint last, so that it knows whether the
    validation was the best. The loop waits for the device only where an action needs it.

    Raises:
        NonFiniteLoss: the checkpoints before it are intact.
        StepOutOfMemory: likewise.
        UserError: a batch could not be made; a checkpoint of the steps before it was written.
    """
    started_at = saved_at = state.step
    while state.step < schedule.total_steps and stop.signal is None:
        try:
            with clock.wait():
                batches = next_step(feed)
        except UserError:  # an utterance could not be read: what was learnt before it is kept
            save_unsaved(state, saved_at, actions)
            raise
        planned = [delivery.planned for delivery in batches]
        learning_rate = schedule.learning_rate(state.step)
        try:
            outcome = step(
                [delivery.batch for delivery in batches], state.step + 1, learning_rate, schedule.ema_decay(state.step)
            )
        except tf.errors.ResourceExhaustedError as error:
            raise StepOutOfMemory(state.step + 1, planned[0].bucket, error) from error
        state.advance(planned[-1].following)
        audio_s, padded_s = sum(p.audio_s for p in planned), sum(p.padded_s for p in planned)
        clock.finish_step(audio_s, padded_s, [delivery.times for delivery in batches])
        if state.step == started_at + 1:
            actions.first_step(state, batches, outcome)

        log, validate, sample, checkpoint = (
            periods.due(period, state.step, last=state.step == schedule.total_steps)
            for period in (periods.log, periods.validate, periods.sample, periods.checkpoint)
        )
        if state.step == started_at + 1 and not log:
            clock.forget()  # most of the first step's time is tracing
        if not (log or validate or sample or checkpoint):
            continue
        require_finite(state)
        metrics, loss = {}, None
        if log:
            metrics = {"epoch": planned[-1].position.epoch, **step.read(outcome), "learning_rate": learning_rate}
            metrics |= clock.report().metrics()
        with clock.pause():
            if validate:
                losses = actions.validate(state)
                loss = losses["loss"]
                metrics |= {f"validation_{name}": value for name, value in losses.items()}
            if metrics:
                actions.report(state, metrics)
            if sample:
                actions.sample(state)
            if checkpoint or (loss is not None and actions.improves(loss)):
                actions.save(state, loss)
                saved_at = state.step
    save_unsaved(state, saved_at, actions)


def save_unsaved(state: TrainingState, saved_at: int, actions: Actions) -> None:
    """A checkpoint of the last step, if there is none."""
    if saved_at < state.step:
        require_finite(state)
        actions.save(state, None)


def next_step(feed: Iterator[Delivery]) -> list[Delivery]:
    """The batches of one step."""
    batches = [next(feed)]
    while not batches[-1].planned.last:
        batches.append(next(feed))
    return batches


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
