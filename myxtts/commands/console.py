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
from myxtts.files import FULL
from myxtts.terminal import detach_stdout, discard_stdout, printable

_SPACE = "Free some disk space or fix the permissions"
# Errno of an error of the disk -> what to do.
_REMEDIES = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR), _SPACE
    ),
    **dict.fromkeys(
        (errno.EIO, errno.ESTALE),
        "Look for the fault in the system's log (dmesg), or use another disk",
    ),
    **dict.fromkeys(
        (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP), "Use a file system with locks (flock)"
    ),
    errno.ENAMETOOLONG: "Give a shorter name",
    errno.EFBIG: "Raise the limit on the size of files (ulimit -f)",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "Raise the limit on open files (ulimit -n)"),
    **dict.fromkeys(
        (errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.ENOTEMPTY),
        "Move it away or choose another place",
    ),
}


def report_errors(program: Callable[[], int]) -> int:
    """Run a program with its log on the console, and return its exit code.

    A UserError, an error of the disk and a lack of memory print one message on stderr and return 2;
    Ctrl-C returns 130, and a reader of stdout that ended, such as `head`, 141. Any other error is a
    defect and keeps its traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        # In a locale without UTF-8, letters that it lacks are escaped.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    log_to_console()
    set_environment()
    try:
        code = program()
        if sys.stdout is not None:  # None: `>&-` in a shell
            sys.stdout.flush()
        return code
    except UserError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        return 2
    except BrokenPipeError:
        discard_stdout()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in _REMEDIES:
            raise
        print(printable(f"error: {_disk_message(error)}"), file=sys.stderr)
        if error.filename is None:  # it may be that of stdout
            discard_stdout()
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except Exception as error:
        if (reason := _lack_of_memory(error)) is None:
            raise
        print(printable(f"error: {reason}"), file=sys.stderr)
        return 2


@contextmanager
def sound_on_stdout() -> Iterator[BinaryIO]:
    """Yield stdout for bytes; whatever else the scope prints or logs goes to stderr.

    Raises:
        ConfigError: stdout is a terminal or closed.
    """
    if sys.stdout is None:  # `>&-` in a shell
        raise ConfigError(
            "--stream writes sound to stdout, but stdout is closed. Give a file with --out instead."
        )
    if sys.stdout.isatty():
        raise ConfigError(
            "--stream writes sound to stdout, but stdout is a terminal. Add a player, such as `|"
            " aplay`, or give a file with --out instead."
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
        if sys.stdout is None:
            return
        try:
            tqdm.write(printable(self.format(record)), file=sys.stdout)
            sys.stdout.flush()
        except OSError as error:
            # Such as the end of a reader; EIO is that of a lost terminal.
            if error.errno not in (*FULL, errno.EIO):
                raise
            detach_stdout(error, "The program goes on")


def _lack_of_memory(error: Exception) -> str | None:
    """Return a message if the host or a device is out of memory (but not of a training)."""
    if isinstance(error, MemoryError):
        return f"out of memory: {error}. End other programs on this machine."
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is None or not isinstance(error, tensorflow.errors.ResourceExhaustedError):
        return None
    reason = error.message.splitlines()[0].rstrip(".")
    return (
        f"out of memory: {reason}. End other programs on this GPU, or use the CPU with"
        " CUDA_VISIBLE_DEVICES=-1."
    )


def _disk_message(error: OSError) -> str:
    # A rename names its target second.
    file = error.filename2 or error.filename
    remedy = _REMEDIES[error.errno or 0]
    if file is None:
        return f"a file: {error.strerror}. {remedy}."
    folder = os.path.dirname(os.path.abspath(os.fsdecode(file)))
    place = f" of {folder}" if remedy == _SPACE else ""
    return f"{os.fsdecode(file)}: {error.strerror}. {remedy}{place}."
