"""Ctrl-C, SIGTERM and SIGHUP as a request that the loop looks at between two steps.

What comes in is a signal, to the main thread, or a call of `stop` from any thread. It only sets a
flag. The loop reads the flag before each step. Several workers pass it on with the all-reduce of
the gradients, so that all of them stop after the same step. What goes out is the exit code.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from myxtts.base.processes import REPEAT_S, stop_signals

# Reading waits until a GPU has done all that is queued on it, so only every fourth step is read.
READ_EVERY = 4


class StopRequest:
    """Whether the run was asked to stop, and by which signal; or is to end early, by --patience.

        with stop_on_signals(StopRequest()) as stop:
            while not stop.due():

    A program that trains in a thread of its own, which gets no signals, calls `stop`. Several
    workers stop after the same step, since all read `stop_requested` of an outcome at the same one.
    """

    def __init__(self, stop_requested: Callable[[tf.Tensor], bool] | None = None) -> None:
        self.signal: int | None = None
        self.is_early = False
        self.stop_requested = stop_requested
        self._steps = 0
        self._is_due = False

    def stop(self) -> None:
        """Request a stop from any thread, as SIGTERM does: an engine takes this machine back."""
        self.signal = self.signal or signal.SIGTERM

    @property
    def requested(self) -> bool:
        """Whether this process was asked to stop."""
        return self.signal is not None

    def due(self) -> bool:
        """Whether to stop before the next step."""
        if self.stop_requested:
            return self._is_due
        return self.requested or self.is_early

    def observe(self, outcome: tf.Tensor) -> None:
        """Look at the outcome of each step."""
        self._steps += 1
        if self.stop_requested and self._steps % READ_EVERY == 0:
            self._is_due = self.stop_requested(outcome)

    def count_local_request(self) -> None:
        """Let a request to this process count after the last step, when no worker waits."""
        self._is_due |= self.requested

    @property
    def name(self) -> str:
        if self.signal:
            return signal.Signals(self.signal).name
        return "--patience" if self.is_early else "a request to another worker"

    @property
    def exit_code(self) -> int:
        """0, or 128 + the signal's number as in shells: 130 for Ctrl-C, 143 for SIGTERM."""
        if not self.due() or (self.is_early and not self.signal):
            return 0
        return 128 + (self.signal or signal.SIGTERM)


@contextmanager
def stop_on_signals(request: StopRequest) -> Iterator[StopRequest]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP into a request; a second one ends the program.

    In a thread, signals do what they did before.
    """
    before: dict[int, Any] = {}

    def restore_handlers() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def request_stop(number, _frame) -> None:
        # The same signal may come once more within the sleep, and is ignored. Other threads and the
        # devices go on meanwhile.
        if request.signal is not None:
            return
        request.signal = number
        time.sleep(REPEAT_S)
        restore_handlers()
        # When a terminal is lost, the shell and the kernel send one each.
        if number == signal.SIGHUP:
            signal.signal(number, signal.SIG_IGN)

    for number in stop_signals():
        before[number] = signal.signal(number, request_stop)
    try:
        yield request
    finally:
        restore_handlers()
