"""Where the time of a run goes: steps, waits for batches, pauses, and what the producer did meanwhile."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

NO_WAIT = 0.05  # a wait share below this: batches come as fast as the model takes them
STARVED = 0.2  # of the producer's time; taking a batch that lies ready costs up to a tenth of it on small batches


class Times(NamedTuple):
    """When a batch passed through the producer, in seconds of `time.perf_counter`.

    A GPU works on after it was told what to do: there, times are those of telling it, except `produced_s` where the
    producer is asked to settle.

    Attributes:
        began_s: the producer asked for it.
        read_s: it lay on the data device.
        produced_s: its features did.
        handed_s: they lay on the model device.
        producer: which one, by its data device.
    """

    began_s: float
    read_s: float
    produced_s: float
    handed_s: float
    producer: str = ""


class Interval(NamedTuple):
    """What passed since the last report; pauses left out.

    Attributes:
        wait_s: the model had no batch.
        read_s, produce_s, transfer_s: the producer's time on the batches of these steps. Reading runs ahead of it, so
            `read_s` is only the time in which it waited for that.
        blocked_s: it waited for the model to take a batch.

    Where there are several producers, these four are means over them.
    """

    steps: int
    busy_s: float
    wait_s: float
    audio_s: float
    padded_s: float
    read_s: float
    produce_s: float
    transfer_s: float
    blocked_s: float

    @property
    def wait_share(self) -> float:
        return self.wait_s / max(self.busy_s, 1e-9)

    @property
    def bottleneck(self) -> str:
        """The slowest stage: `step` where the model does not wait, else the one that the producer waits for or does.

        Reading runs ahead of the producer. So where that has to wait, reading is the slower of the two, even if
        producing takes the larger part of its time.
        """
        if self.wait_share < NO_WAIT:
            return "step"
        if self.read_s > STARVED * (self.read_s + self.produce_s + self.transfer_s):
            return "read"
        return "produce" if self.produce_s >= self.transfer_s else "transfer"

    def metrics(self) -> dict[str, float | str]:
        """Means over the interval, under the names of metrics.jsonl."""
        steps, busy_s = max(self.steps, 1), max(self.busy_s, 1e-9)
        return {
            "step_s": self.busy_s / steps,
            "wait_s": self.wait_s / steps,
            "steps_per_s": self.steps / busy_s,
            "audio_seconds_per_s": self.audio_s / busy_s,
            "padding": 1.0 - self.audio_s / self.padded_s if self.padded_s else 0.0,
            "read_s": self.read_s / steps,
            "produce_s": self.produce_s / steps,
            "transfer_s": self.transfer_s / steps,
            "blocked_s": self.blocked_s / steps,
            "accelerator_utilisation": 1.0 - self.wait_share,
            "bottleneck": self.bottleneck,
        }


class Clock:
    """Counts step, wait and pause time between two reports.

    A pause (validation, checkpoint, samples) is no part of any step. The device must be settled
    before `report` and `pause` are called, or work in flight is counted in the wrong place.

    Args:
        now: seconds, by the clock that the producer's times are read from.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        self._now = now
        self._handed_s: dict[str, float] = {}  # when each producer was done with its newest batch of a step
        self._pauses: deque[tuple[float, float]] = deque(maxlen=64)  # more than a feed runs ahead, as a rule
        self._restart()

    def _restart(self) -> None:
        self._start_s = self._now()
        self._steps = 0
        self._wait_s = self._pause_s = self._audio_s = self._padded_s = 0.0
        self._read_s = self._produce_s = self._transfer_s = self._blocked_s = 0.0

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
        end_s = self._now()
        self._pause_s += end_s - start_s
        self._pauses.append((start_s, end_s))

    def finish_step(self, audio_s: float, padded_s: float, batches: Iterable[Times]) -> None:
        """A step was taken on `batches`, all in all `audio_s` seconds of speech, `padded_s` with padding.

        Those of one producer are in their order.
        """
        batches = list(batches)
        share = 1.0 / max(len({times.producer for times in batches}), 1)
        self._steps += 1
        self._audio_s += audio_s
        self._padded_s += padded_s
        for times in batches:
            self._read_s += share * (times.read_s - times.began_s)
            self._produce_s += share * (times.produced_s - times.read_s)
            self._transfer_s += share * (times.handed_s - times.produced_s)
            if times.producer in self._handed_s:
                self._blocked_s += share * self._unpaused(self._handed_s[times.producer], times.began_s)
            self._handed_s[times.producer] = times.handed_s

    def _unpaused(self, start_s: float, end_s: float) -> float:
        """Seconds between two moments that lie in no pause."""
        overlaps = (max(0.0, min(end, end_s) - max(start, start_s)) for start, end in self._pauses)
        return end_s - start_s - sum(overlaps)

    def forget(self) -> None:
        """Drop what passed since the last report, as a pause that nobody asks for."""
        self._pauses.append((self._start_s, self._now()))
        self._restart()

    def report(self) -> Interval:
        """What passed since the last report; starts anew."""
        interval = Interval(
            steps=self._steps,
            busy_s=self._now() - self._start_s - self._pause_s,
            wait_s=self._wait_s,
            audio_s=self._audio_s,
            padded_s=self._padded_s,
            read_s=self._read_s,
            produce_s=self._produce_s,
            transfer_s=self._transfer_s,
            blocked_s=self._blocked_s,
        )
        self._restart()
        return interval
