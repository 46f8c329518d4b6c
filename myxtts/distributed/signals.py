"""Signals that ask this process to stop. No TensorFlow."""

import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

REPEAT_S = 0.2  # Slurm, timeout(1) and wrappers send a signal twice within milliseconds


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask a program to stop: SIGINT, SIGTERM and, unless nohup ignores it,
    SIGHUP.
    """
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *[signal.SIGHUP] * (not is_ignored)]


class StopSignals:
    """The signals to stop that this process has received.

    Attributes:
        signal: the first signal received.
        count: number of signals received.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.count = 0

    @property
    def signal_name(self) -> str:
        return signal.Signals(self.signal).name if self.signal is not None else ""

    @property
    def exit_code(self) -> int:
        """128 plus the signal number, as in shells; 0 without a request."""
        return 0 if self.signal is None else 128 + self.signal

    def caused(self, code: int) -> bool:
        """Return whether the request caused a child to end with this exit code, with or without
        saving.
        """
        return self.signal is not None and (
            code in (130, 143) or -code in (self.signal, signal.SIGTERM)
        )


@contextmanager
def counted_stop_signals() -> Iterator[StopSignals]:
    """Count the signals that ask to stop instead of ending; one that follows within REPEAT_S is the
    same request.
    """
    requests, newest_s = StopSignals(), -math.inf

    def handle(number, _frame) -> None:
        nonlocal newest_s
        if number == signal.SIGHUP and requests.count:
            return  # the end of a session sends it several times, or after a SIGTERM
        before_s, newest_s = newest_s, time.monotonic()
        if newest_s - before_s < REPEAT_S:
            return
        requests.signal = requests.signal or number
        requests.count += 1

    previous = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield requests
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def exit_at_sigterm() -> Iterator[None]:
    """Let a SIGTERM raise SystemExit in the main thread, so that temporary folders and children go
    with the scope.
    """
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
