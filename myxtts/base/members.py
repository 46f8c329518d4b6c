"""Files within tar files, by an address that is used like the name of a file:

FOLDER/shard.tar@BEGIN+SIZE/NAME, where FOLDER may be the URL of a store
"""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from myxtts.base import plugins
from myxtts.base.errors import ConfigError, format_value
from myxtts.base.files import cached_folder

# Objects that are read at the same time: they mostly wait for the network.
THREADS = 32
INDEX = "index.arrow"  # the rows of a packed corpus
ORIGIN = "origin.txt"  # in a folder that stands for a URL
_MEMBER = re.compile(r"(?s)(.+\.tar)@(\d+)\+(\d+)/(.*)")


def is_url(name: object) -> bool:
    return "://" in str(name)


def check_local(value: Any, where: str) -> None:
    """Raise ConfigError for a URL in place of a path, which would name a local folder `s3:`."""
    if is_url(value):
        raise ConfigError(
            f"{where} is {format_value(value)}, but must be a local path: a URL would be a folder"
            f" {value.partition('/')[0]} here. Mount it (rclone mount, gcsfuse), or copy it."
        )


class Member(NamedTuple):
    """A file within a tar file: where its bytes are, and its name there."""

    tar: str
    begin: int
    size: int
    name: str

    @property
    def address(self) -> str:
        return f"{self.tar}@{self.begin}+{self.size}/{self.name}"


def member_of(path: str) -> Member | None:
    """Return what an address says; None for the name of a file."""
    # Few of a million names are addresses, and the regular expression would take longer.
    if ".tar@" not in path:
        return None
    found = _MEMBER.fullmatch(path)
    return found and Member(found[1], int(found[2]), int(found[3]), found[4])


@cache
def store_of(base: str) -> Any:
    """Return the store of a folder or a URL, which the first plug-in that takes it opens."""
    for open_store in plugins.load("stores"):
        if (store := open_store(base)) is not None:
            return store
    raise ConfigError(f"{base} cannot be opened: no package for its kind of store is installed.")


def read_member(member: Member) -> bytes:
    folder, _, name = member.tar.rpartition("/")
    return store_of(folder or "/").read(name, member.begin, member.size)


def read_members(
    members: Sequence[Member], read: Callable[[Member], bytes] = read_member
) -> list[bytes]:
    """Return the bytes of some members, which are read at the same time."""
    return [*_threads().map(read, members)]


@cache
def _threads() -> ThreadPoolExecutor:
    # These threads stay until the process ends. Threads named after the package must not.
    return ThreadPoolExecutor(THREADS, "store")


def stand_in(url: str) -> Path:
    """Return a folder of the user's cache that stands for a store.

    In it, ORIGIN has the URL, and INDEX is a copy of the store's index, as it is now, if there is
    one. Other processes of the host use the same folder.
    """
    url = url.rstrip("/")
    store = store_of(url)
    version = store.version(INDEX)

    def copy(folder: Path) -> None:
        (folder / ORIGIN).write_text(url)
        if version is not None:
            store.fetch(INDEX, folder / INDEX)

    return cached_folder("stores", [url, version], copy)


def base_of(folder: Path) -> str:
    """Return the URL that a folder stands for, or the folder itself."""
    origin = folder / ORIGIN
    return origin.read_text() if origin.exists() else str(folder.absolute())
