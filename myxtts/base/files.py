"""Atomic writes and text files, with errors that name the file."""

import csv
import errno
import fcntl
import hashlib
import io
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from myxtts.base.errors import ConfigError, DataError

STEM_BYTES = 180
# What a clone without Git LFS has instead of a file.
LFS_POINTER = b"version https://git-lfs."
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # Lustre without -o flock, some NFS
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # disk, quota of a user, ulimit -f

# Size, time of modification and time of change. A program that copies files may set the former
# time, but not the latter.
FileStamp = tuple[int, int, int]

log = logging.getLogger(__name__)


@contextmanager
def attach_path_to_errors(path: Path) -> Iterator[None]:
    """Make an OSError of the scope name `path`; errors of `write` and `fsync` name no file."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        error.filename2 = None
        raise


@contextmanager
def tolerate_full_disk(what: str) -> Iterator[None]:
    """Log that the disk is full, where the files of the scope are not worth the end of a run."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        path = error.filename2 or error.filename or "a file"
        reason = f"{path}: {error.strerror}. Free some disk space; the run goes on."
        log.error("%s cannot be written: %s", what, reason)


def decode_text(read: Callable[[], bytes], source: str) -> str:
    """Return the UTF-8 text that `read` returns, without a byte order mark, or raise DataError."""
    try:
        return read().decode("utf-8-sig")
    except OSError as error:
        reason = error.strerror
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 at byte {error.start}"
    raise DataError(f"the text in {source} cannot be read: {reason}. Give a text in UTF-8.")


def table_beside(module_file: str, name: str) -> Any:
    """Return the content of a YAML file of this package in or below the folder of a module."""
    # libyaml, which most builds of the package have, takes a tenth of the time.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((Path(module_file).parent / name).read_text("utf-8"), loader)


def partial_file_of(path: Path) -> Path:
    """Return the name of a file while this thread writes it; each thread has its own."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.partial")


def json_bytes(document: Any) -> bytes:
    """Return a document as JSON in UTF-8; file names that are not UTF-8 are escaped (`\\udce9`)."""
    return json.dumps(document, ensure_ascii=False, indent=1).encode(errors="backslashreplace")


def write_json(path: Path, document: Any) -> None:
    write_whole(path, json_bytes(document))


def numbered_name(number: int, name: str) -> str:
    """Return the start of file names of an utterance: `3-chapter_1` of number 3, a/chapter_1.wav.

    A long name is cut, since most file systems take 255 bytes for the whole name.
    """
    stem = os.fsencode(Path(name).stem).decode(errors="replace")
    return f"{number}-{stem.encode()[:STEM_BYTES].decode(errors='ignore')}"


def write_whole(path: Path, content: bytes) -> None:
    with replaced_file(path) as file:
        file.write(content)


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write rows as CSV; names of files need not be UTF-8."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    write_whole(path, text.getvalue().encode(errors="surrogateescape"))


# Readers see the old content or the new one, never a part. The bytes are on the disk before the
# rename, so this also holds after a power cut. Two threads that write the same file have partial
# files of their own, and the last rename wins.
@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file under a temporary name; then flush it to the disk, and rename it to `path`.

    An OSError names `path`, which is then unchanged.
    """
    partial = partial_file_of(path)
    try:
        with attach_path_to_errors(path):
            with open(partial, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
    except BaseException:
        # A stop is no Exception.
        partial.unlink(missing_ok=True)
        raise


def remove_partial_files(folder: Path) -> None:
    """Remove the partial files that killed processes left in a folder."""
    for partial in folder.glob(".*.partial"):
        if not is_being_written(partial):
            partial.unlink(missing_ok=True)


def is_being_written(partial: Path) -> bool:
    """Whether a partial file belongs to another process that is alive on this machine."""
    named = re.search(r"\.(\d+)-\d+\.partial\Z", partial.name)
    pid = int(named[1]) if named else 0
    # In a container, a killed process often had the number of this one.
    if pid in (0, os.getpid()):
        return False
    try:
        os.kill(pid, 0)
    except OSError as error:
        # It is another user's.
        return isinstance(error, PermissionError)
    return True


def cache_folder() -> Path:
    """Return the user's folder of caches, which may be deleted while no program uses it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "myxtts"


def cached_folder(kind: str, key: object, make: Callable[[Path], None]) -> Path:
    """Return a folder of the user's cache, which `make` fills where there is none for the key.

    Other processes that need it wait. The key is any document of JSON.
    """
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    folder = cache_folder() / kind / digest
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock")
        with locked_file(lock):
            try:
                if not folder.exists():
                    with new_folder(folder) as partial:
                        make(partial)
            finally:
                lock.unlink()
    return folder


def make_folder(folder: Path, flag: str) -> None:
    """Make a folder, and its parents; raise ConfigError if it or files in it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} cannot be used: {error.strerror}. Choose another {flag}."
        ) from error


def check_writable(flag: str, path: Path | None) -> None:
    """Raise ConfigError, before minutes of work, if the file of a flag cannot be written."""
    if path is None:
        return
    folder = path.absolute().parent
    fault = ""
    if path.is_dir():
        fault = "that is a folder"
    # /dev/stdout may lead to a regular file, and its name must stay.
    elif (path.exists() and not path.is_file()) or folder in (Path("/dev"), Path("/proc/self/fd")):
        fault = "that is a pipe or a device"
    elif not folder.is_dir():
        fault = f"there is no folder {path.parent}"
    elif not os.access(folder, os.W_OK | os.X_OK):
        fault = f"no files can be made in the folder {path.parent}"
    if fault:
        raise ConfigError(
            f"{flag} {path} was given, but {fault}. Name a file in a folder that can be written to."
        )


def file_stamp(path: str | os.PathLike[str]) -> FileStamp | None:
    """Return the stamp of a file or of what a link points to; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


# A lock belongs to an open file, not to its name. While this process waits for the lock, its holder
# may rename or remove the file. Then the lock is of no use, because others lock the new file of
# that name. So after each wait the name is looked up, and the file is opened again if it differs.
@contextmanager
def locked_file(path: Path, wait: bool = True, lock: bool = True) -> Iterator[BinaryIO]:
    """Open a file, create it if missing, and lock it until the scope or the process ends.

    Without `wait`, raises BlockingIOError if another process or thread has the lock.
    """
    mode = fcntl.LOCK_EX
    if not wait:
        mode |= fcntl.LOCK_NB
    while True:
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b") as file:
            with attach_path_to_errors(path):
                if lock:
                    fcntl.flock(file, mode)
            if _has_name(file, path):
                yield file
                return


def _has_name(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def fsync_folder(folder: Path) -> None:
    """Flush a folder's entries (names, renames) to the disk, against a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with attach_path_to_errors(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def partial_folder_of(folder: Path) -> Path:
    """Return the name of a folder while it is not complete."""
    return folder.with_name(f".partial-{folder.name}")


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder, renamed to `folder` if the scope ends without an error.

    Raises OSError if `folder` has content by then.
    """
    partial = partial_folder_of(folder)
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    partial.mkdir(parents=True)
    try:
        yield partial
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
