"""log.txt: the lines of the console with timestamps, kept in the run folder."""

import logging
from logging.handlers import MemoryHandler
from pathlib import Path
from types import TracebackType

PACKAGE = logging.getLogger("myxtts")


class RunLog(MemoryHandler):
    """Appends the lines of the package's log to a file; a context manager.

    Keeps lines in memory until `open` names the file. The error that ends the scope becomes the last line.
    """

    def __init__(self) -> None:
        super().__init__(capacity=1, flushLevel=logging.NOTSET)  # passes each line on at once, if there is a file

    def __enter__(self) -> "RunLog":
        PACKAGE.addHandler(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            message = f"ended by {type(error).__name__}: {error}"
            self.emit(PACKAGE.makeRecord(PACKAGE.name, logging.ERROR, "", 0, message, (), None))
        PACKAGE.removeHandler(self)
        if self.target is not None:
            self.target.close()

    def open(self, path: Path) -> None:
        """Write the lines so far, and from now on each line at once; the folder of the file must exist."""
        file = logging.FileHandler(path, encoding="utf-8")
        file.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        self.setTarget(file)
        self.flush()
