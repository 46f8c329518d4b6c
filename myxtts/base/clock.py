"""Where the time of a run goes: steps, waits for batches, pauses, and producing.

The main thread reports its waits, pauses and steps to a Clock, and hands over the times that each
batch had in its producer. Out come the means of each interval between two reports.
"""

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from statistics import fmean, pstdev

from myxtts.devicefeed.times import Span, Timeline, Times

# The pause in which the step is traced; it does not recur, so no rate includes it.
FIRST_STEP = "first step"
# Below this wait share, batches come as fast as the model takes them.
NO_WAIT = 0.05
# Reading is the bottleneck if the producer waits for more than this share of its time, even if
# producing takes a larger one. Up to a tenth goes into taking small batches that are ready.
READ_BOUND_SHARE = 0.2
MODEL = "model"  # lane of the spans of the main thread
SHORTEST_SPAN_S = 1e-4


# Each step is timed from the end of its call to the end of the next call, minus the pauses between.
# Three kinds of steps are left out: the first one, those before the newest tracing, and those right
# after a pause, where the host runs ahead and its calls are short.
def step_variation(spans: Iterable[Span], traced_s: float, ahead: int) -> float | None:
    """Return the coefficient of variation of the times of steps; None for less than two steps.

    Args:
        traced_s: when TensorFlow last traced a step, which does not recur.
        ahead: steps that the host may be ahead of a GPU. It waits for it before a pause, so as many
            calls after one are shorter than their steps, and are left out.
    """
    times_s: list[float] = []
    number, end_s, pause_s, since_pause = 0, -math.inf, 0.0, 0
    for span in spans:
        if span.lane != MODEL:
            continue
        if span.kind not in ("step", "wait"):
            pause_s, since_pause = pause_s + span.end_s - span.start_s, 0
        # All spans of the main thread up to the next wait have the number of the step before.
        elif span.kind == "step" and span.number > number:
            if end_s > traced_s and since_pause >= ahead:
                times_s.append(span.end_s - end_s - pause_s)
            number, end_s, pause_s, since_pause = span.number, span.end_s, 0.0, since_pause + 1
    if len(times_s) < 2:
        return None
    return pstdev(times_s) / fmean(times_s)


@dataclass
class Interval:
    """The time between two reports; `read_s`, `produce_s`, `blocked_s` are means of producers."""

    steps: int = 0
    busy_s: float = 0.0  # of steps, with the waits for their batches and without pauses
    wait_s: float = 0.0  # the model device was idle, waiting for a batch
    audio_s: float = 0.0  # seconds of speech of the batches, without padding
    padded_s: float = 0.0  # and with it
    read_s: float = 0.0  # the producer waited for samples, which are read ahead of it
    produce_s: float = 0.0
    blocked_s: float = 0.0  # the producer was blocked on a full queue
    pause_s: float = 0.0  # the model device waited for validation, samples, checkpoints or a sync

    def __add__(self, other: "Interval") -> "Interval":
        return Interval(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def wait_share(self) -> float:
        return self.wait_s / max(self.busy_s, 1e-9)

    @property
    def bottleneck(self) -> str:
        """The slowest stage: `step` if the model does not wait, else `read` or `produce`."""
        if self.wait_share < NO_WAIT:
            return "step"
        if self.read_s > READ_BOUND_SHARE * (self.read_s + self.produce_s):
            return "read"
        return "produce"

    def metrics(self) -> dict[str, float | str]:
        """Return means over the interval, by their names in metrics.jsonl."""
        steps = max(self.steps, 1)
        busy_s = max(self.busy_s, 1e-9)
        padding = 1.0 - self.audio_s / self.padded_s if self.padded_s else 0.0
        return {
            "step_s": self.busy_s / steps,
            "wait_s": self.wait_s / steps,
            "steps_per_s": self.steps / busy_s,
            "audio_seconds_per_s": self.audio_s / busy_s,
            "padding": padding,
            "read_s": self.read_s / steps,
            "produce_s": self.produce_s / steps,
            "blocked_s": self.blocked_s / steps,
            "pause_s": self.pause_s / steps,
            "accelerator_utilisation": 1.0 - self.wait_share,
            "bottleneck": self.bottleneck,
        }


class Clock:
    """Counts step, wait and pause time between two reports, and of the whole run.

        with clock.wait():
            batch = next(feed)
        clock.finish_step(audio_s, padded_s, times)

    A pause (validation, checkpoint, samples) is not part of a step. Synchronize the device before
    `report` and `pause`, or work in flight is counted in the wrong place. `pauses_s` has the
    seconds of all pauses so far, by kind.

    Args:
        now: returns seconds of the same clock as the producer's times.
        replicas: number of replicas of this process; each wait is for so many batches.
        timeline: gets the spans of steps, waits, pauses and batches. The span of a step is what the
            main thread did between waits and pauses.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        producers: int = 1,
        replicas: int = 1,
        timeline: Timeline | None = None,
    ):
        self._now, self._producers, self._replicas = now, producers, replicas
        self.timeline = timeline or Timeline()
        self._start_s = self._busy_since_s = now()
        self._interval = Interval()
        self._reported = Interval()
        self._takes: deque[tuple[int, float]] = deque()  # number and time, until a step has them
        self._taken = self._trained = 0
        self._last_s: dict[str, float] = {}  # when each producer finished its newest batch
        # Usually more than a feed runs ahead.
        self._pauses: deque[tuple[float, float]] = deque(maxlen=64)
        self.pauses_s: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Count the scope as time in which the model device waited for a batch."""
        start_s = self._now()
        yield
        end_s = self._now()
        self._interval.wait_s += end_s - start_s
        self._taken += 1
        self._takes.append((self._taken, end_s))
        self._record("wait", start_s, end_s)

    @contextmanager
    def pause(self, kind: str) -> Iterator[None]:
        """Count the scope as time that belongs to no step."""
        start_s = self._now()
        yield
        end_s = self._now()
        self._interval.pause_s += end_s - start_s
        self.pauses_s[kind] += end_s - start_s
        self._pauses.append((start_s, end_s))
        self._record(kind, start_s, end_s)

    def _record(self, kind: str, start_s: float, end_s: float) -> None:
        """Add a wait or a pause to the timeline, and the part of the newest step before it."""
        if end_s - start_s < SHORTEST_SPAN_S:
            return
        # What the main thread did before its first step belongs to no step.
        if self._trained and start_s - self._busy_since_s >= SHORTEST_SPAN_S:
            self.timeline.add(Span(MODEL, "step", self._busy_since_s, start_s, self._trained))
        self.timeline.add(Span(MODEL, kind, start_s, end_s))
        self._busy_since_s = end_s

    def finish_step(self, audio_s: float, padded_s: float, batches: Iterable[Times]) -> None:
        """Count a step, with the times of its batches, in order for each producer.

        `audio_s` and `padded_s` are the seconds of speech in them, without and with padding.
        """
        batches = list(batches)
        share = 1.0 / self._producers
        interval = self._interval
        end_s = self._now()
        self._record_batches(batches)
        self.timeline.add(Span(MODEL, "step", self._busy_since_s, end_s, self._trained))
        self._busy_since_s = end_s
        interval.steps += 1
        interval.audio_s += audio_s
        interval.padded_s += padded_s
        for times in batches:
            interval.read_s += share * (times.read_s - times.began_s)
            interval.produce_s += share * (times.produced_s - times.read_s)
            # Between two batches a producer is blocked on its full queue, unless the run pauses.
            if times.producer in self._last_s:
                last_s = self._last_s[times.producer]
                began_s = times.began_s
                paused = (min(end, began_s) - max(start, last_s) for start, end in self._pauses)
                paused_s = sum(seconds for seconds in paused if seconds > 0.0)
                interval.blocked_s += share * (began_s - last_s - paused_s)
            self._last_s[times.producer] = times.produced_s

    def drop_taken(self) -> None:
        """Forget the batches that were taken and that no step will have."""
        self._takes.clear()

    def _record_batches(self, batches: list[Times]) -> None:
        """Add the batches of a step to the timeline, with the times when the loop got them."""
        taken_s = 0.0
        for index, times in enumerate(batches):
            if index % self._replicas == 0:
                if not self._takes:
                    # Batches that nobody waited for.
                    return
                self._trained, taken_s = self._takes.popleft()
            lane, number = times.producer, self._trained
            self.timeline.add(
                Span(lane, "read", times.began_s, times.read_s, number),
                Span(lane, "produce", times.read_s, times.produced_s, number),
                Span(lane, "feed", times.produced_s, taken_s, number),
            )

    def _ended(self) -> Interval:
        busy_s = self._now() - self._start_s - self._interval.pause_s
        return replace(self._interval, busy_s=busy_s)

    def forget(self) -> Interval:
        """Do as `report` does, but count the time as a pause, the first step."""
        # Pauses within the time that is forgotten are a part of it.
        while self._pauses and self._pauses[-1][0] >= self._start_s:
            self._pauses.pop()
        self._pauses.append((self._start_s, self._now()))
        reported = self._reported
        interval = self.report()
        self._reported = reported
        self.pauses_s[FIRST_STEP] += interval.busy_s
        return interval

    def report(self) -> Interval:
        """Return the time since the last report, and start the next interval."""
        interval = self._ended()
        self._reported += interval
        self._interval = Interval()
        self._start_s = self._now()
        return interval

    def total(self) -> Interval:
        """Return the time of all steps so far, without those that were forgotten."""
        return self._reported + self._ended()

    def remaining_s(self, newest: Interval, steps: int) -> float:
        """Return the time of more steps, as long as the newest ones, with the mean pause so far."""
        pause_s = sum(seconds for kind, seconds in self.pauses_s.items() if kind != FIRST_STEP)
        return steps * (newest.busy_s / max(newest.steps, 1) + pause_s / max(self.total().steps, 1))


def format_duration(seconds: float) -> str:
    """Return seconds in the unit that suits them: `9.9 s`, `12 min`, `1.7 h`, `3.0 days`."""
    count, unit = seconds, "s"
    units = (("min", 60, 90), ("h", 3600, 5400), ("days", 86400, 172800))
    for larger, size_s, shown_from_s in units:
        if seconds >= shown_from_s:
            count, unit = seconds / size_s, larger
    if count < 9.95:
        return f"{count:.1f} {unit}"
    return f"{count:.0f} {unit}"
