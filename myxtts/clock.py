"""Where the time of a run goes: steps, waits for batches, and pauses."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Interval(NamedTuple):
    """What passed since the last report; pauses left out."""

    steps: int
    busy_s: float
    wait_s: float
    audio_s: float
    padded_s: float

    def metrics(self) -> dict[str, float]:
        """Means over the interval, under the names of metrics.jsonl."""
        steps, busy_s = max(self.steps, 1), max(self.busy_s, 1e-9)
        return {
            "step_s": self.busy_s / steps,
            "wait_s": self.wait_s / steps,
            "steps_per_s": self.steps / busy_s,
            "audio_seconds_per_s": self.audio_s / busy_s,
            "padding": 1.0 - self.audio_s / self.padded_s if self.padded_s else 0.0,
        }


class Clock:
    """Counts step, wait and pause time between two reports.

    A pause (validation, checkpoint, samples) is no part of any step. The device must be settled
    before `report` and `pause` are called, or work in flight is counted in the wrong place.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        self._now = now
        self._restart()

    def _restart(self) -> None:
        self._start_s = self._now()
        self._steps = 0
        self._wait_s = self._pause_s = self._audio_s = self._padded_s = 0.0

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Time in which the model device has no batch."""
        start_s = self._now()
        yield
        self._wait_s += self._now() - start_s

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Time that belongs to no step."""
        start_s = self._now()
        yield
        self._pause_s += self._now() - start_s

    def finish_step(self, audio_s: float, padded_s: float) -> None:
        """A step was taken on `audio_s` seconds of speech, `padded_s` with padding."""
        self._steps += 1
        self._audio_s += audio_s
        self._padded_s += padded_s

    def report(self) -> Interval:
        """What passed since the last report; starts anew."""
        busy_s = self._now() - self._start_s - self._pause_s
        interval = Interval(self._steps, busy_s, self._wait_s, self._audio_s, self._padded_s)
        self._restart()
        return interval
