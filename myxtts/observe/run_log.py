"""log.txt: the lines of the console with timestamps, kept in the run folder."""

import logging
from pathlib import Path
from types import TracebackType

PACKAGE = logging.getLogger("myxtts")


class RunLog(logging.Handler):
    """Appends the lines of the package's log to a file; a context manager.

    Keeps lines in memory until `open` names the file. The error that ends the scope becomes the last line.
    """

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
        self._early: list[logging.LogRecord] = []
        self._file: logging.FileHandler | None = None

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
        if self._file is not None:
            self._file.close()

    def open(self, path: Path) -> None:
        """Write the lines so far, and from now on each line at once; the folder of the file must exist."""
        self._file = logging.FileHandler(path, encoding="utf-8")
        self._file.setFormatter(self.formatter)
        for record in self._early:
            self._file.emit(record)
        self._early.clear()

    def emit(self, record: logging.LogRecord) -> None:
        if self._file is None:
            self._early.append(record)
        else:
            self._file.emit(record)
