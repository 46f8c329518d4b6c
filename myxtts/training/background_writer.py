"""A thread that writes while training goes on, one thing at a time."""

import threading
from collections.abc import Callable


class BackgroundWriter:
    """Runs functions in a thread, one after the other.

    The thread is a daemon: a program that must end at once (a second Ctrl-C) does not wait for it.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a function is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, write: Callable[[], None]) -> None:
        """Wait for the function before, then start this one in a thread; raises what `wait`
        raises.
        """
        self.wait()
        self._thread = threading.Thread(
            target=self._run, args=(write,), name="background writer", daemon=True
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait until the function that was started has ended, and raise its error, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:  # raised where the training waits for it
            self._error = error
