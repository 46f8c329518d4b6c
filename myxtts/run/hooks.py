"""What happens between two steps: hooks, which the loop calls in the order of a list.

What comes in is the end of a step (`StepEnd`): the state, the outcome on the device and the plan of
the step. The loop asks each hook whether it is due, without waiting for the device, and calls those
that are, in the main thread. Hooks check devices, write reports and begin observations. What goes
out are changes of the `StepEnd`: more metrics, or the wish for a checkpoint.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import tensorflow as tf

from myxtts.base.clock import FIRST_STEP
from myxtts.base.progress import Observation
from myxtts.batches.plan import PlannedStep
from myxtts.devicefeed.audit import require_device
from myxtts.devicefeed.contract import Batch
from myxtts.run.observation import OBSERVER, Observer, Snapshot
from myxtts.run.schedule import due_parts, is_due
from myxtts.run.state import TrainingState
from myxtts.run.stop_request import StopRequest

log = logging.getLogger(__name__)


@dataclass
class StepEnd:
    """The end of a step, as hooks see it.

    Attributes:
        step: its number. `SyncWeights` may move the state to a later step.
        batches: the last microbatch of the first step of this process; later steps keep none.
        metrics: the report that is due, or nothing; hooks add to it.
        save: whether to write a checkpoint; set by the loop, and by a hook that needs one.
        owes_sync: the sync of this step was stopped, so its weights are not the final ones.
        is_redealt: the feed begins anew after this step, with other shares of the replicas.
    """

    state: TrainingState
    outcome: tf.Tensor
    planned: PlannedStep
    total_steps: int
    stop: StopRequest
    step: int = field(init=False)
    batches: Sequence[Batch] = ()
    metrics: dict[str, Any] = field(default_factory=dict)
    save: bool = False
    owes_sync: bool = False
    is_redealt: bool = False

    def __post_init__(self) -> None:
        self.step = self.state.step

    @property
    def is_last(self) -> bool:
        """Whether the run is done; a sync may have moved the state to the last step."""
        return self.state.step >= self.total_steps

    def is_due(self, every: int) -> bool:
        """Whether work with a period of `every` steps is due after this step."""
        return is_due(every, self.step, self.is_last) and not self.owes_sync


class Hook(Protocol):
    """Work after some steps; `pause_kind` names its time in the last lines of a run."""

    pause_kind: str

    def is_due(self, end: StepEnd) -> bool: ...

    def __call__(self, end: StepEnd) -> None: ...


class CheckDevices:
    """Checks after the first step that everything is on the device that the placement names."""

    pause_kind = FIRST_STEP

    def __init__(self, started_s: float):
        self._started_s = started_s

    def is_due(self, end: StepEnd) -> bool:
        return bool(end.batches)

    def __call__(self, end: StepEnd) -> None:
        check_devices(end.state, end.batches, end.outcome)
        # Reading the outcome waits for the end of the step.
        end.outcome.numpy()
        log.info("first step     %.1f s after the start", time.perf_counter() - self._started_s)


def check_devices(state: TrainingState, batches: Sequence[Batch], outcome: tf.Tensor) -> None:
    """Raise PlacementError unless all is on the device of its replica."""
    state.require_devices()
    require_device(state.device, [("losses", outcome)])
    for device, batch in zip(state.replicas.devices, batches, strict=True):
        require_device(device, batch.items())


class Report:
    """Hands the metrics of a step, if there are any, to functions of the step and the metrics."""

    pause_kind = "reports"

    def __init__(self, *actions: Callable[[int, dict[str, Any]], object]):
        self._actions = actions

    def is_due(self, end: StepEnd) -> bool:
        return bool(end.metrics)

    def __call__(self, end: StepEnd) -> None:
        for action in self._actions:
            action(end.state.step, end.metrics)


class Observe:
    """Takes a snapshot of the weights where a part of an observation is due, for the observer.

    The step gets a checkpoint, from which a resumed run repeats it if its result is unknown.
    """

    pause_kind = OBSERVER

    def __init__(self, periods: Mapping[str, int], observer: Observer, snapshot: Snapshot):
        self._periods, self._observer, self._snapshot = periods, observer, snapshot

    def is_due(self, end: StepEnd) -> bool:
        return any(end.is_due(every) for every in self._periods.values())

    # The observation is noted as pending before anything else. So the checkpoint of this step knows
    # it, and a run that is killed meanwhile repeats it. There is one snapshot, so training waits
    # until the observer has finished the observation before.
    def __call__(self, end: StepEnd) -> None:
        state = end.state
        observation = Observation(state.step, due_parts(self._periods, end.step, end.is_last))
        state.pending_observations += (observation,)
        end.save = True
        is_idle = self._observer.wait(
            lambda: end.stop.requested or end.stop.due(), observation.step
        )
        # The awaited result may end the run early. Then a resumed run does this observation.
        if is_idle and not end.stop.is_early:
            self._snapshot.take()
            self._observer.begin(observation)
