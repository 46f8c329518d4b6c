"""`--batch-shares auto`: deals the rows of a step by how long each replica works on its own."""

import logging
from typing import NamedTuple

import numpy as np

from myxtts.clock import Clock
from myxtts.data.batch_plan import Pass
from myxtts.data.pipeline import Pipeline, ReplicaFeed
from myxtts.training.hooks import StepEnd
from myxtts.training.setup import TrainingSetup
from myxtts.training.step import IDLE_STEPS, Step

# Since the start or the deal before, while caches and feeds fill.
WARM_UP_STEPS = 8
MEASURED_STEPS = 10 * IDLE_STEPS
# Fraction of a step for which a replica waits for the slowest.
STARVED = 0.05

log = logging.getLogger(__name__)


class Totals(NamedTuple):
    """Seconds since this process started: of all steps, and the idle ones of each replica."""

    steps: int
    busy_s: float
    idle_s: np.ndarray


class DealShares:
    """Deals the rows anew where a replica is starved: once after the first MEASURED_STEPS of a run,
    and at the end of each epoch.

    All replicas step together, so each works for the time of a step without its wait. The shares in
    force divided by these times are the shares with which all would work equally long, but for what
    does not depend on the rows. A checkpoint records them, so that a run that resumes at any time
    takes the steps that it would have taken.

    Args:
        pipeline, feed: of the batches of training, which begin anew after a deal.
    """

    pause_kind = "shares"

    def __init__(
        self, setup: TrainingSetup, step: Step, clock: Clock, pipeline: Pipeline, feed: ReplicaFeed
    ):
        self._step, self._clock, self._pipeline, self._feed = step, clock, pipeline, feed
        self._plan = setup.corpora.training.plan
        self._fill_s = setup.config.data.model_start_delay
        self._first_step = self._since = setup.state.step
        self._before: Totals | None = None

    def is_due(self, end: StepEnd) -> bool:
        steps = end.step - self._since
        if self._before is None:
            return steps >= WARM_UP_STEPS
        if steps < WARM_UP_STEPS + MEASURED_STEPS or end.is_last:
            return False
        is_first = self._since == self._first_step and not end.state.batch_shares
        return is_first or not end.planned.next_position.step

    def __call__(self, end: StepEnd) -> None:
        total = self._clock.total()
        now = Totals(total.steps, total.busy_s, self._step.idle_s())
        before, self._before = self._before, now
        if before is None:
            return
        self._since, self._before = end.step, None
        step_s = (now.busy_s - before.busy_s) / (now.steps - before.steps)
        measured = (now.steps - before.steps) / IDLE_STEPS
        idle_s = (now.idle_s - before.idle_s) / measured
        # Chance lets each of them wait now and then.
        idle = np.minimum((idle_s - idle_s.min()) / step_s, 0.99)
        if idle.max() > STARVED:
            self._deal(end, idle)

    def _deal(self, end: StepEnd, idle: np.ndarray) -> None:
        """Deal the rows by the fraction of a step for which each replica is idle."""
        plan, state = self._plan, end.state
        sizes, rows = plan.batch_sizes, plan.describe_rows()
        dealt = sizes.sum(axis=0)
        shares = dealt / (1.0 - idle)
        shares = np.maximum(shares / shares.sum(), 1.0 / sizes.sum(axis=1).max())
        plan.deal(np.round(shares / shares.sum(), 4).tolist())
        if np.array_equal(plan.batch_sizes, sizes):
            plan.deal(state.batch_shares)
            return
        waiting = int(idle.argmax())
        log.info(
            "shares         %s waited for the others for %.0f %% of a step: %s rows from step %d"
            " on, %s before",
            state.replicas.devices[waiting],
            100 * idle[waiting],
            plan.describe_rows(),
            end.step + 1,
            rows,
        )
        state.batch_shares = plan.shares
        end.save = end.is_redealt = True
        self._feed.replace(self._pipeline.feeds(Pass(state.position)))
        self._feed.wait_until_full(self._fill_s, lambda: end.stop.requested)
