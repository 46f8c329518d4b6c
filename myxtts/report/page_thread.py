"""Writes report.html during training, in a thread of its own."""

import logging
import threading
import time
from pathlib import Path
from types import TracebackType

from myxtts.files import FULL
from myxtts.report.run_page import RunPage

REFRESH_S = 5.0  # between two pages: a person does not look more often

log = logging.getLogger(__name__)


class PageThread:
    """Writes the page of a run after each report, but not more often than every REFRESH_S; a
    context manager.

    A page that cannot be written, as on a full disk, is warned of once; the training goes on.

    Args:
        page: what to write.
        refresh_s: seconds between two pages.
    """

    def __init__(self, page: RunPage, refresh_s: float = REFRESH_S):
        self._page, self._refresh_s = page, refresh_s
        self._requested, self._closing = threading.Event(), threading.Event()
        self._has_warned = False
        self._thread = threading.Thread(target=self._run, name="myxtts-report", daemon=True)

    def __enter__(self) -> "PageThread":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()
        if error is not None:
            self._write(f"ended by {type(error).__name__}: {error}")

    def request(self) -> None:
        """Ask for a page with the newest report; returns at once."""
        self._requested.set()

    def end(self, how: str) -> Path | str:
        """Write the last page, and end the thread; return the path of the page, or that it is not
        written.

        Args:
            how: the run has ended, such as `finished`.
        """
        self._close()
        return self._write(how) or "not written"

    def _close(self) -> None:
        self._closing.set()
        self._requested.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._refresh_s):
            self._requested.wait()
            self._requested.clear()
            if not self._closing.is_set():
                self._write()

    def _write(self, ended: str = "") -> Path | None:
        start_s = time.perf_counter()
        try:
            path = self._page.write(ended)
        except OSError as error:
            if not self._has_warned:
                advice = (
                    "Free some disk space; the training goes on"
                    if error.errno in FULL
                    else "The training goes on"
                )
                log.warning("report.html cannot be written: %s. %s.", error, advice)
            self._has_warned = True
            return None
        log.debug("report.html took %.3f s", time.perf_counter() - start_s)
        return path
