"""The observer: a thread that works on snapshots of the weights while training goes on. No
TensorFlow.

The main thread takes a snapshot between two steps and begins an observation. It applies the result
between two later steps, in the order of the observations. At most one is running: if the next one
is due before, training waits for it.
"""

import logging
import threading
import time
from collections.abc import Callable
from math import ceil
from queue import Empty, Queue
from typing import NamedTuple, Protocol

from myxtts.clock import format_duration
from myxtts.errors import UserError
from myxtts.training.observation import Pace
from myxtts.training.schedule import Observation

OBSERVER = "observer"  # the kind of the pauses for it
POLL_S = 0.002  # between two looks at the feed
STOP_POLL_S = 0.1  # between two looks at the stop request
TOLERATED_WAIT = 0.005  # of the time between two observations

ObserveFunction = Callable[[Observation, Pace | None], dict[str, float]]
"""(observation, pace or None) -> metrics by name, none of samples alone; called in the observer's
thread.
"""

Record = Callable[[Observation, dict[str, float]], None]
"""(observation, metrics): applies a result; called in the main thread, in the order of the
observations.
"""

log = logging.getLogger(__name__)


class FullFeed(Protocol):
    """The part of a `ReplicaFeed` that the observer looks at."""

    @property
    def is_full(self) -> bool:
        """Whether the producers have nothing to do."""
        ...


class ObserverFailed(RuntimeError):
    """An observation failed by a defect, which is the cause of this error."""


class _Abandoned(Exception):
    """The run ends: what is left of the observation is repeated when the run is resumed."""


class Result(NamedTuple):
    """What came of an observation.

    Attributes:
        metrics: by name; empty without a validation and an evaluation.
        duration_s: from its beginning to its end.
        paused_s: of these, the time in which the producers went first.
        error: raised in place of a result.
    """

    observation: Observation
    metrics: dict[str, float]
    duration_s: float
    paused_s: float
    error: BaseException | None = None


class NoObserver:
    """Stands in for `Observer` where training waits for each observation; a context manager."""

    def __enter__(self) -> "NoObserver":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def watch(self, feed: FullFeed) -> None:
        """Do nothing."""

    def poll(self) -> None:
        """Do nothing."""

    def wait(self, is_stopped: Callable[[], bool], due_step: int | None = None) -> bool:
        """Do nothing."""
        return True

    def close(self) -> None:
        """Do nothing."""


class Observer(NoObserver):
    """Runs observations in a thread of its own, one at a time; a context manager. All methods are
    for the main thread.

    Args:
        observe: does the work.
        record: applies the results.
        may_record: whether a result can be applied at once.
        now, sleep: seconds, and waiting for them.
    """

    def __init__(
        self,
        observe: ObserveFunction,
        record: Record,
        may_record: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._observe, self._record, self._may_record = observe, record, may_record
        self._now, self._sleep = now, sleep
        self._feed: FullFeed | None = None
        self._begun: Queue[Observation | None] = Queue(1)
        self._results: Queue[Result] = Queue(1)
        self._running: Observation | None = None
        self._began_s = 0.0
        self._paused_s = 0.0
        self._awaited, self._closing = threading.Event(), threading.Event()
        self._has_warned = False
        self._thread = threading.Thread(target=self._run, name="myxtts-observer", daemon=True)

    def __enter__(self) -> "Observer":
        self._thread.start()
        return self

    def close(self) -> None:
        """Abandon the observation that is running after its batch, and end the thread."""
        if not self._closing.is_set():
            self._closing.set()
            self._begun.put(None)
        self._thread.join()

    def watch(self, feed: FullFeed) -> None:
        """Let the producers of a feed go first from now on."""
        self._feed = feed

    def begin(self, observation: Observation) -> None:
        """Begin an observation of the snapshot; none may be running."""
        assert self._running is None, "two observations at a time"
        self._running, self._began_s = observation, self._now()
        self._begun.put(observation)

    def poll(self) -> None:
        """Apply the result of the observation that is running, if it is there and `may_record`.

        Raises:
            UserError: the observation failed.
            ObserverFailed: it failed by a defect.
        """
        if self._running is not None and not self._results.empty() and self._may_record():
            self._finish(self._results.get())

    def wait(self, is_stopped: Callable[[], bool], due_step: int | None = None) -> bool:
        """Wait for the observation that is running and apply its result; return whether none is
        running now.

        Args:
            is_stopped: whether the run has a request to stop, for which an observation is left
                unfinished.
            due_step: step of the next observation, which waits for this one; None at the end of the
                run.

        Raises:
            as `poll`.
        """
        if self._running is None:
            return True
        step, began_s, start_s = self._running.step, self._began_s, self._now()
        self._awaited.set()
        try:
            while (result := self._take_result()) is None:
                if is_stopped():
                    return False
        finally:
            self._awaited.clear()
        waited_s = self._now() - start_s
        if (
            due_step is not None
            and waited_s > TOLERATED_WAIT * (start_s - began_s)
            and not self._has_warned
        ):
            self._has_warned = True
            log.warning("%s", slow_observer(result, waited_s, start_s - began_s, due_step - step))
        self._finish(result)
        return True

    def _take_result(self) -> Result | None:
        try:
            return self._results.get(timeout=STOP_POLL_S)
        except Empty:
            return None

    def _finish(self, result: Result) -> None:
        self._running = None
        if isinstance(result.error, (UserError, OSError)):  # one of the disk, with its file
            raise result.error
        if result.error is not None:
            raise ObserverFailed(
                f"the observation of step {result.observation.step} failed"
            ) from result.error
        self._record(result.observation, result.metrics)

    def _run(self) -> None:
        while (observation := self._begun.get()) is not None:
            try:
                result = self._result_of(observation)
            except _Abandoned:
                return
            self._results.put(result)

    def _result_of(self, observation: Observation) -> Result:
        start_s, self._paused_s = self._now(), 0.0
        metrics: dict[str, float] = {}
        error = None
        try:
            metrics = self._observe(observation, self._pace)
        except _Abandoned:
            raise
        except BaseException as raised:  # the main thread raises it
            error = raised
        return Result(observation, metrics, self._now() - start_s, self._paused_s, error)

    def _pace(self) -> None:
        """Wait until the feed is full, or the main thread waits for the observer; see `Pace`."""
        start_s = self._now()
        while not (
            self._closing.is_set()
            or self._awaited.is_set()
            or self._feed is None
            or self._feed.is_full
        ):
            self._sleep(POLL_S)
        self._paused_s += self._now() - start_s
        if self._closing.is_set():
            raise _Abandoned


def slow_observer(result: Result, waited_s: float, between_s: float, steps: int) -> str:
    """Return the warning that training waited for an observation, and how much rarer observations
    must be.

    Args:
        waited_s: that training waited.
        between_s: the observation began so long before that.
        steps: from its step to that of the next observation.
    """
    enough = ceil(steps * (between_s + waited_s) / max(between_s, 1e-9))
    paused = ""
    if result.paused_s > 0.1 * result.duration_s:
        paused = f" ({format_duration(result.paused_s)} of them for the producers, which go first)"
    return (
        f"training waited {format_duration(waited_s)} for the observer: its work on the weights of"
        f" step {result.observation.step} took {format_duration(result.duration_s)}{paused}, but"
        f" the {steps} steps until it is due again take {format_duration(between_s)}. Every"
        f" {enough} steps would be rare enough (--validate-every, --sample-every,"
        " --evaluate-every); or choose another device with --observer."
    )
