"""Ctrl-C and SIGTERM as a request that the loop looks at between two steps."""

import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

LAG_STEPS = 4  # a GPU has long done a step that was so many before: nothing waits for its outcome


class StopRequest:
    """Whether the run was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def asked(self) -> bool:
        """Whether this process was."""
        return self.signal is not None

    def due(self) -> bool:
        """Whether to stop before the next step."""
        return self.asked

    def look(self, outcome: tf.Tensor) -> None:
        """See the outcome of each step."""

    @property
    def name(self) -> str:
        return "a request to another worker" if self.signal is None else signal.Signals(self.signal).name

    @property
    def exit_code(self) -> int:
        """0, or 128 + the signal's number as shells have it: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.signal or signal.SIGTERM) if self.due() else 0


class SharedStopRequest(StopRequest):
    """The same for one of several processes, of which none takes a step alone: all stop at the same one.

    Each step tells all processes whether one was asked. That is looked at some steps later.

    Args:
        told: reads it from an outcome.
    """

    def __init__(self, told: Callable[[tf.Tensor], bool]) -> None:
        super().__init__()
        self._told = told
        self._outcomes: deque[tf.Tensor] = deque()
        self._due = False

    def due(self) -> bool:
        return self._due

    def look(self, outcome: tf.Tensor) -> None:
        self._outcomes.append(outcome)
        if len(self._outcomes) > LAG_STEPS:
            self._due |= self._told(self._outcomes.popleft())


@contextmanager
def stop_on_signals(request: StopRequest) -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM into a request; a second one ends the program at once."""
    before = {}

    def ask(number, _frame):
        request.signal = number
        for one, handler in before.items():
            signal.signal(one, handler)

    for one in (signal.SIGINT, signal.SIGTERM):
        before[one] = signal.signal(one, ask)
    try:
        yield request
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
