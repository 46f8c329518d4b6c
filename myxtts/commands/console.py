"""The console of a command: log lines on stdout, errors on stderr, and the exit code."""

import errno
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import BinaryIO

from tqdm import tqdm

from myxtts.commands.tensorflow_log import set_environment
from myxtts.errors import ConfigError, UserError

_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}


def report_errors(program: Callable[[], int]) -> int:
    """Run a program with its log on the console, and return its exit code.

    A UserError and an error of the disk print one message on stderr and return 2; Ctrl-C returns 130, and a reader of
    stdout that ended, such as `head`, 141. Any other error is a defect and keeps its traceback.
    """
    log_to_console()
    set_environment()
    try:
        code = program()
        sys.stdout.flush()
        return code
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python reports the pipe again at its exit
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        print(f"error: {_disk_message(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


@contextmanager
def sound_on_stdout() -> Iterator[BinaryIO]:
    """Yield stdout for bytes; whatever else the scope prints or logs goes to stderr.

    Raises:
        ConfigError: stdout is a terminal.
    """
    if sys.stdout.isatty():
        raise ConfigError(
            "--stream writes sound to stdout, but stdout is a terminal. Add a player, such as `| aplay`, or give a "
            "file with --out instead."
        )
    sound = sys.stdout.buffer
    with redirect_stdout(sys.stderr):
        yield sound


def log_to_console() -> None:
    package = logging.getLogger("myxtts")
    package.setLevel(logging.INFO)
    package.handlers = [_Console()]
    package.propagate = False


class _Console(logging.Handler):
    """Log lines on stdout, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        tqdm.write(self.format(record), file=sys.stdout)
        sys.stdout.flush()


def _disk_message(error: OSError) -> str:
    file = error.filename2 or error.filename  # the target of a rename, if the error names one
    if file is None:
        return f"a file: {error.strerror}. Free some disk space or fix the permissions."
    folder = os.path.dirname(os.path.abspath(os.fsdecode(file)))
    return f"{os.fsdecode(file)}: {error.strerror}. Free some disk space or fix the permissions of {folder}."
