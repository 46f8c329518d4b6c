"""Atomic writes and text files, with errors that name the file."""

import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from myxtts.errors import ConfigError, DataError

FULL = (errno.ENOSPC, errno.EDQUOT)  # the disk, or the quota of the user

log = logging.getLogger(__name__)


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Make an OSError of the scope name `path`; errors of `write` and `fsync` name no file."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


@contextmanager
def going_on_if_full(what: str) -> Iterator[None]:
    """Log that the disk is full, where the files of the scope are not worth the end of a run.

    Args:
        what: the files: `the samples of step 500`.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        log.error("%s cannot be written: %s: %s. Free some disk space; the run goes on.", what, *_reason(error))


def _reason(error: OSError) -> tuple[str, str | None]:
    return str(error.filename2 or error.filename or "a file"), error.strerror


def decode_text(read: Callable[[], bytes], source: str) -> str:
    """Return the UTF-8 text that `read` returns, without a byte order mark.

    Raises:
        DataError: it cannot be read, or is not UTF-8; names the source.
    """
    try:
        return read().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"it is not UTF-8 at byte {error.start}"
        raise DataError(f"the text in {source} cannot be read: {reason}. Give a text file in UTF-8.") from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, flush it to the disk, and rename it.

    Raises:
        OSError: names `path`, which is unchanged.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with name_in_errors(path):
            with open(partial, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def make_folder(folder: Path, flag: str) -> None:
    """Make a folder that may exist, and its parents.

    Raises:
        ConfigError: the folder cannot be made; the message names the flag that chooses it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be made: {error.strerror}. Choose another {flag}.") from error


def check_writable(flag: str, path: Path | None) -> None:
    """Check that a file can be written, before minutes of work.

    Raises:
        ConfigError: the path of the flag is a folder, or its folder does not exist.
    """
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        fault = "that is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise ConfigError(f"{flag} {path} was given, but {fault}. Name a file in an existing folder.")


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries (names, renames) to the disk; a power cut may lose them otherwise."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with name_in_errors(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder, which replaces `folder` if the scope ends without an error."""
    partial = folder.with_name(f".partial-{folder.name}")
    partial.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)  # nothing is left of it after the rename
