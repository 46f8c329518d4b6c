"""When the threads of a feed worked and waited."""

import threading
from collections import deque
from typing import NamedTuple

KEPT_SPANS = 2048  # some hundred steps


class Times(NamedTuple):
    """When a producer requested the samples of a batch, had them, and had its features on its data
    device, in seconds of `time.perf_counter`. On a GPU, `produced_s` is when the work was launched,
    unless the producer synchronizes.
    """

    began_s: float
    read_s: float
    produced_s: float
    producer: str = ""  # its data device


class Span(NamedTuple):
    """What a thread did for a while, in seconds of `time.perf_counter`: `step`, `wait`, or a pause;
    on a data device `read` (its producer waited for samples), `produce`, and `feed` (the batch lay
    ready until the main thread took it).
    """

    lane: str  # `MODEL`, a data device, or another thread such as `observer`
    kind: str
    start_s: float
    end_s: float
    number: int = 0  # of the batch in this process, from 1; of a step, of its last batch


class Timeline:
    """The newest spans of a run, in each lane in the order of their ends; thread-safe."""

    def __init__(self, size: int = KEPT_SPANS):
        self._spans: deque[Span] = deque(maxlen=size)
        self._lock = threading.Lock()

    def add(self, *spans: Span) -> None:
        with self._lock:
            self._spans.extend(spans)

    def newest(self) -> list[Span]:
        with self._lock:
            return list(self._spans)
