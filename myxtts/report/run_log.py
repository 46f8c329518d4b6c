"""log.txt: the lines of the console with timestamps, kept in the run folder."""

import logging
import sys
from contextlib import suppress
from logging.handlers import MemoryHandler
from pathlib import Path
from types import TracebackType

PACKAGE = logging.getLogger("myxtts")


class RunLog(MemoryHandler):
    """Appends the lines of the package's log to a file; a context manager.

    Keeps lines in memory until `open` names the file. The error that ends the scope becomes the
    last line.
    """

    def __init__(self) -> None:
        super().__init__(
            capacity=1, flushLevel=logging.NOTSET
        )  # passes each line on at once, if there is a file

    def __enter__(self) -> "RunLog":
        PACKAGE.addHandler(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            message = f"ended by {type(error).__name__}: {error}"
            self.emit(PACKAGE.makeRecord(PACKAGE.name, logging.ERROR, "", 0, message, (), None))
        PACKAGE.removeHandler(self)
        if self.target is not None:
            with suppress(OSError):  # of a full disk: the console has the lines
                self.target.close()

    def open(self, path: Path) -> None:
        """Write the lines so far, and from now on each line at once; the folder of the file must
        exist.
        """
        file = _LogFile(
            path, encoding="utf-8", errors="backslashreplace"
        )  # names of files need not be UTF-8
        file.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        self.setTarget(file)
        self.flush()


class _LogFile(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(
            sys.exc_info()[1], OSError
        ):  # a full disk must not fill the console with tracebacks
            super().handleError(record)
