"""The console of a command: log lines on stdout, errors on stderr, the exit code, and what
TensorFlow's C++ code reads from the environment and writes to stderr. No TensorFlow.
"""

import errno
import logging
import os
import re
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import UnsupportedOperation
from pathlib import Path
from typing import BinaryIO

from myxtts.base.errors import ConfigError, lacking_memory
from myxtts.base.files import FULL
from myxtts.devicefeed.errors import UserError

# Errors of a disk and of limits, which a user can fix. Others are defects.
_FIXABLE = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO),
    *(errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.ENOTEMPTY, errno.ESTALE),
    *(errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENAMETOOLONG, errno.EMFILE, errno.ENFILE),
}
# While TensorFlow is imported, its libraries write lines before their log level applies, and
# without an NVIDIA driver they report an error for the GPU that is not there. No setting turns them
# off: absl offers Python no access to the log of the libraries, and TF_ENABLE_ONEDNN_OPTS=0, which
# silences one of them, changes the results of training. libmpg123 reports each jump into the middle
# of an MP3 file, which the check for truncated files makes (`audio.sound_header`). noise.txt has a
# pattern a line.
_NOISE = re.compile(b"|".join(Path(__file__).with_name("noise.txt").read_bytes().splitlines()))
# Characters of these classes of Unicode reverse the order of the text around them.
_BIDIRECTIONAL_CONTROLS = ["LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"]


def report_errors(program: Callable[[], int]) -> int:
    """Run a program with its log on the console, and return its exit code.

    A UserError, an error of the disk and a lack of memory print one message on stderr and return 2,
    or 138 if another process was lost; Ctrl-C returns 130, and a reader of stdout that ended, such
    as `head`, 141. Any other error is a defect and keeps its traceback.
    """
    for stream in (sys.stdout, sys.stderr):
        # Letters that a locale without UTF-8 lacks would end the command with an error.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    log_to_console()
    set_environment()
    try:
        code = program()
        if sys.stdout is not None:  # None: `>&-` in a shell
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        discard_stdout()
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except Exception as error:
        message = str(error) if isinstance(error, UserError) else _fixable(error)
        if message is None:
            raise
        print(printable(f"error: {message}"), file=sys.stderr)
        # An error without a file may be one of stdout, and would come again when Python flushes it.
        if isinstance(error, OSError) and error.filename is None:
            discard_stdout()
        return getattr(error, "exit_code", UserError.exit_code)


def _fixable(error: Exception) -> str | None:
    """Return the message for a full disk, host memory or device memory; None for a defect."""
    if isinstance(error, OSError) and error.errno in _FIXABLE:
        # An error of a rename has two names, and the second could not be written.
        file = error.filename2 or error.filename or "a file"
        remedy = "Check the free space, the permissions and the limits of the disk, or move it away"
        return f"{os.fsdecode(file)}: {error.strerror}. {remedy}."
    tensorflow = sys.modules.get("tensorflow")
    lacks_memory = isinstance(error, MemoryError) or (
        tensorflow is not None and isinstance(error, tensorflow.errors.ResourceExhaustedError)
    )
    if not lacks_memory:
        return None
    reason = lacking_memory(error)
    return f"out of memory: {reason}. End other programs on this machine or GPU, or use the CPU."


@contextmanager
def sound_on_stdout() -> Iterator[BinaryIO]:
    """Yield stdout for bytes; whatever else the scope prints or logs goes to stderr."""
    if sys.stdout is None or sys.stdout.isatty():  # None: `>&-` in a shell
        reason = "stdout is a terminal or closed"
        raise ConfigError(f"--stream writes sound, but {reason}. Add `| aplay`, or give --out.")
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
            # A bar is one of tqdm: without the package in this process there is none.
            tqdm = sys.modules.get("tqdm")
            write = tqdm.tqdm.write if tqdm else print
            write(printable(self.format(record)), file=sys.stdout)
            sys.stdout.flush()
        except OSError as error:
            # A reader that ends, such as `head`, ends the program; EIO is a lost terminal.
            if error.errno not in (*FULL, errno.EIO):
                raise
            detach_stdout(error, "The program goes on")


def printable(text: str) -> str:
    r"""Return a text with \x1b and the like for characters that a terminal would act on.

    Names of files and texts of a corpus are quoted in messages. They may hold control characters,
    or bytes that are not UTF-8, which are lone surrogates and cannot be written.
    """
    characters = []
    for character in text:
        category = unicodedata.category(character)
        is_control = category in ("Cc", "Cs", "Zl", "Zp") and character not in "\n\t"
        if is_control or unicodedata.bidirectional(character) in _BIDIRECTIONAL_CONTROLS:
            character = ascii(character)[1:-1]
        characters.append(character)
    return "".join(characters)


def discard_stdout() -> None:
    """Redirect stdout to /dev/null; otherwise Python reports its error again when it exits."""
    with suppress(UnsupportedOperation):  # a stdout that is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def detach_stdout(error: OSError, who: str) -> None:
    """Discard stdout after an error (a closed terminal, a full disk, `head`); warn on stderr that
    `who`, such as "The program goes on".
    """
    discard_stdout()
    # A closed terminal has taken stderr with it.
    with suppress(OSError):
        print(f"warning: stdout ends here: {error.strerror}. {who}.", file=sys.stderr)


def set_environment() -> None:
    """Set the variables that TensorFlow and CUDA read, unless the user has set them.

    Variables of Keras are replaced, since the user has set them for other projects.
    """
    for name in [name for name in os.environ if name.startswith("KERAS_")]:
        del os.environ[name]
    # In this home is no keras.json.
    os.environ |= {"KERAS_BACKEND": "tensorflow", "KERAS_HOME": os.devnull}
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # warnings and errors
    # As in nvidia-smi; by default the fastest GPU is first.
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


def filter_stderr() -> None:
    """Pass file descriptor 2 through a process that drops the lines above and no others.

    Call it before TensorFlow is imported. The filter is a separate process, so that the last lines
    of a process that aborts still arrive. Python's `sys.stderr` keeps the original file descriptor.
    Does nothing without stderr, or if the user wants the whole log (TF_CPP_MIN_LOG_LEVEL=0).
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return
    try:
        original = os.dup(2)
    except OSError:
        return
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)  # or the pipe would never end
        _run_filter(reading, original)
    os.close(reading)
    os.dup2(writing, 2)
    os.close(writing)
    encoding = sys.stderr.encoding
    sys.stderr = os.fdopen(original, "w", 1, encoding, errors="backslashreplace")


def _run_filter(reading: int, original: int) -> None:
    """Copy lines until every process that writes to the pipe has ended; never returns."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The process that is filtered may still write after these.
        signal.signal(number, signal.SIG_IGN)
    for descriptor in {0, 1, 2} - {reading, original}:
        os.close(descriptor)
    rest = b""
    try:
        while block := os.read(reading, 65536):
            *lines, rest = (rest + block).split(b"\n")
            os.write(original, b"".join(line + b"\n" for line in lines if not _NOISE.match(line)))
        os.write(original, rest)
    finally:
        os._exit(0)
