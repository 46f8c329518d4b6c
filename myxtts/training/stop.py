"""Ctrl-C and SIGTERM as a request that the loop looks at between two steps."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class StopRequest:
    """Whether the run was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def name(self) -> str:
        return "" if self.signal is None else signal.Signals(self.signal).name

    @property
    def exit_code(self) -> int:
        """0, or 128 + the signal's number as shells have it: 130 for Ctrl-C, 143 for SIGTERM."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM into a request; a second one ends the program at once."""
    request = StopRequest()
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
