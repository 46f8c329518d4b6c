"""Files that are written whole or not at all."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from myxtts.errors import ConfigError


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, to the disk, then rename it.

    Raises:
        OSError: the disk refuses; `path` is then as it was.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def check_writable(flag: str, path: Path | None) -> None:
    """Before minutes are spent on what could not be written.

    Raises:
        ConfigError: the file that a flag names is a folder, or in a folder that is not there.
    """
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        fault = "that is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise ConfigError(f"{flag} {path} was asked for, but {fault}. Name a file in a folder that exists.")


def fsync_folder(folder: Path) -> None:
    """Bring a folder's own entries (names, renames) to the disk; a power cut may lose them otherwise."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Give a new folder that takes the place of `folder` when the scope ends without an error."""
    partial = folder.with_name(f".partial-{folder.name}")
    partial.mkdir(parents=True, exist_ok=True)
    try:
        yield partial
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
