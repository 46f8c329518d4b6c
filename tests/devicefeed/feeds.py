"""An observed source of a feed, and calls that must end."""

import threading
import time
from collections.abc import Callable, Iterator

TIMEOUT_S = 120.0  # for operations that take milliseconds or block for ever


def within_timeout(function: Callable):
    """Return or raise what a function returns or raises; fail if it does not end."""
    outcome = []

    def call():
        try:
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    if not outcome:
        raise AssertionError(f"the function has not ended after {TIMEOUT_S} s")
    value, error = outcome[0]
    if error is not None:
        raise error
    return value


def wait_until(is_true: Callable[[], object]) -> None:
    """Call a function until it returns something true; fail if it never does."""
    end_s = time.monotonic() + TIMEOUT_S
    while not is_true():
        if time.monotonic() > end_s:
            raise AssertionError(f"nothing has happened for {TIMEOUT_S} s")
        time.sleep(0.001)


def producers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "feed-producer"]


class ObservedSource:
    """The numbers from 0, endless or to `count`; it knows which thread closed it."""

    def __init__(self, count: int | None = None):
        self.made, self.closed_in, self.changed = 0, None, threading.Condition()
        self._count = count
        self._items = self._make()  # a reference here: only the consumer closes the generator

    def __iter__(self) -> Iterator[int]:
        return self._items

    def _make(self) -> Iterator[int]:
        try:
            while self.made != self._count:
                with self.changed:
                    self.made += 1
                    self.changed.notify_all()
                yield self.made - 1
        finally:
            self.closed_in = threading.current_thread().name

    def wait_for(self, made: int, timeout_s: float = TIMEOUT_S) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.made >= made, timeout_s)
