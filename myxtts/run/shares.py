"""`--batch-shares auto`: deals the rows of a step by how long each replica works on its own.

What comes in are times: how long steps take, and how long each replica waits in them for the
gradients of the slowest. A hook measures them for some steps in the main thread, and computes
shares with which all replicas would work equally long. What goes out are new sizes of the batches
in the plan, and new feeds, whose batches have these sizes. A step keeps its utterances.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import tensorflow as tf

from myxtts.base.clock import Clock
from myxtts.batches.pipeline import Pipeline
from myxtts.batches.plan import Pass, water_fill
from myxtts.devicefeed.producer import ReplicaFeed
from myxtts.devicefeed.routes import Placement
from myxtts.placement.gpu_memory import DriverUnavailable, read_memory
from myxtts.run.hooks import StepEnd
from myxtts.run.setup import TrainingSetup
from myxtts.run.step import IDLE_STEPS, Step

# The steps after a start or a deal are not measured, while caches and feeds fill.
WARM_UP_STEPS = 8
MEASURED_STEPS = 10 * IDLE_STEPS
# So many deals follow one another. One is not enough: a part of a step does not depend on its rows,
# such as launching, and a device may change its speed while it is measured.
MOST_DEALS = 4
# A replica is starved if it waits for the slowest for more than this fraction of a step.
STARVED = 0.05
# New shares use this fraction of a GPU's memory: the longest batches may not have come yet.
USABLE = 0.9

log = logging.getLogger(__name__)


class DealShares:
    """Deals the rows anew where a replica is starved.

    It deals up to MOST_DEALS times at the start of a run, each time after measuring, and as often
    from the end of an epoch on. A checkpoint records the shares, for the steps of a resumed run.

    All replicas step together, so the busy time of each is the time of a step without its wait.
    Dividing each current share by its busy time gives shares with equal busy times, apart from the
    part of a step that does not grow with rows.

    Attributes:
        bound_s: seconds of a step if none ever waited, by the newest measurement; None before it.
    """

    pause_kind = "shares"

    def __init__(
        self, setup: TrainingSetup, step: Step, clock: Clock, pipeline: Pipeline, feed: ReplicaFeed
    ):
        self._step, self._clock, self._pipeline, self._feed = step, clock, pipeline, feed
        self._setup, self._plan = setup, setup.corpora.training.plan
        self._since = setup.state.step
        self._deals_left = MOST_DEALS
        self._before: np.ndarray | None = None
        self.bound_s: float | None = None

    # The hook is called in pairs. A first call begins a measurement (`_before` is None until then),
    # and a second one ends it, MEASURED_STEPS later. While there are deals left, pairs follow one
    # another. Afterwards a pair begins shortly before the end of an epoch, and ends with it.
    def is_due(self, end: StepEnd) -> bool:
        next_step, steps = end.planned.next_position.step, end.step - self._since
        if self._before is None:
            # A measurement that ends with the epoch begins so many steps before.
            begin = max(self._plan.steps_per_epoch - MEASURED_STEPS, 0)
            return steps >= WARM_UP_STEPS and (self._deals_left > 0 or next_step == begin)
        if steps < MEASURED_STEPS or end.is_last:
            return False
        return self._deals_left > 0 or not next_step

    # The time of the steps and the waits of the replicas are sums since the start, so a measurement
    # is the difference of two readings. Waits are measured in every IDLE_STEPS-th step. The least
    # wait is subtracted, because even the slowest replica waits now and then by chance. `bound_s`
    # is the time of a step in which all replicas work at their own speeds until all rows are done.
    def __call__(self, end: StepEnd) -> None:
        now = np.array([self._clock.total().busy_s, *self._step.idle_s()])
        before, self._before, steps = self._before, now, end.step - self._since
        self._since = end.step
        self._step.measures_idle = before is None
        if before is None:
            return
        self._before = None
        busy_s, *idle_s = now - before
        # The fraction of a step for which each replica waits, float64 [replicas].
        idle = np.minimum(IDLE_STEPS * (np.array(idle_s) - min(idle_s)) / busy_s, 0.99)
        dealt = self._plan.batch_sizes.sum(axis=0)
        self.bound_s = busy_s / steps * dealt.sum() / (dealt / (1.0 - idle)).sum()
        self._deals_left = (self._deals_left or MOST_DEALS) - 1
        if idle.max() > STARVED:
            self._deal(end, idle)
        else:
            self._deals_left = 0

    # A row costs a replica (1 - idle) / dealt of a step. `water_fill` divides one step so that all
    # finish together, and no replica gets more rows than its memory holds. Each replica keeps at
    # least one row of the largest batch, and shares have four digits, as a checkpoint records them.
    # If this changes no batch, dealing ends. Otherwise the loop makes a checkpoint, and the feed
    # begins anew behind this step, since its queues hold batches of the former sizes.
    def _deal(self, end: StepEnd, idle: np.ndarray) -> None:
        """Deal the rows by the fraction of a step for which each replica is idle."""
        plan, state = self._plan, end.state
        sizes, rows = plan.batch_sizes, plan.describe_rows()
        dealt = sizes.sum(axis=0)
        room = memory_room(self._setup.run.placement, state.replicas.devices)
        most = dealt / dealt.sum() * np.maximum(USABLE * room, 1.0)
        shares = water_fill(0.0 * idle, (1.0 - idle) / dealt, 1.0, most)
        shares = np.maximum(shares, 1.0 / sizes.sum(axis=1).max())
        plan.deal(np.round(shares / shares.sum(), 4).tolist())
        if np.array_equal(plan.batch_sizes, sizes):
            # Rounding to whole rows, or the memory, allows no better shares.
            self._deals_left = 0
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
        forget_peaks(self._setup.run.placement, state.replicas.devices)
        fill_s = self._setup.config.data.model_start_delay
        self._feed.wait_until_full(fill_s, lambda: end.stop.requested)


def forget_peaks(placement: Placement, devices: Sequence[str]) -> None:
    """Let `memory_room` count what the devices take from now on, for other rows."""
    if placement.on_gpu:
        for device in devices:
            tf.config.experimental.reset_memory_stats(device[1:])


def memory_room(placement: Placement, devices: Sequence[str]) -> np.ndarray:
    """Return by what factor the peak memory of each device may grow: float64 [devices].

    The peak counts since the last deal. The factor is inf where the limit is unknown.
    """
    room = np.full(len(devices), np.inf)
    for device in placement.devices:
        if device.name not in devices or device.physical is None or not placement.on_gpu:
            continue
        peak_mib = tf.config.experimental.get_memory_info(device.name[1:])["peak"] / 2**20
        limit_mib: float | None = device.memory_mib
        if limit_mib is None:
            with suppress(DriverUnavailable):
                (memory,) = read_memory((device.physical,)).values()
                limit_mib = peak_mib + memory.free_mib
        if limit_mib is not None:
            room[devices.index(device.name)] = limit_mib / peak_mib
    return room
