"""Signals that ask this process to stop. No TensorFlow."""

import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Slurm, timeout(1) and wrappers send a signal twice within milliseconds.
REPEAT_S = 0.2


def stop_signals() -> list[signal.Signals]:
    """Return SIGINT, SIGTERM and, unless nohup ignores it, SIGHUP."""
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals


class StopSignals:
    """The requests to stop that this process has received.

    Attributes:
        signal: the first signal.
        count: number of requests.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.count = 0

    @property
    def signal_name(self) -> str:
        return "" if self.signal is None else signal.Signals(self.signal).name

    @property
    def exit_code(self) -> int:
        """128 plus the signal number, as in shells; 0 without a request."""
        return 0 if self.signal is None else 128 + self.signal

    def caused(self, code: int) -> bool:
        """Return whether a child ended with this code on request, with or without saving."""
        if self.signal is None:
            return False
        return code in (130, 143) or -code in (self.signal, signal.SIGTERM)


@contextmanager
def counted_stop_signals() -> Iterator[StopSignals]:
    """Count the requests to stop instead of ending; REPEAT_S must pass between two of them."""
    requests = StopSignals()
    newest_s = -math.inf

    def handle(number, _frame) -> None:
        nonlocal newest_s
        # The end of a session sends SIGHUP several times, or after a SIGTERM.
        if number == signal.SIGHUP and requests.count:
            return
        now_s = time.monotonic()
        elapsed_s = now_s - newest_s
        newest_s = now_s
        if elapsed_s >= REPEAT_S:
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
    """Let a SIGTERM raise SystemExit, so that temporary folders and children go with the scope."""
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
