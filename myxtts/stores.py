"""Shards of a corpus and files of a run, in a folder or an object store, and local copies of them.

An utterance within a tar file has an address, which is used like the name of a file:
FOLDER/shard.tar@BEGIN+SIZE/NAME, where FOLDER may be the URL of an object store.
"""

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from myxtts.base.errors import DataError, check_packages
from myxtts.base.files import cached_folder, remove_partial_files, write_whole

# Objects that are read at the same time: they mostly wait for the network.
THREADS = 32
RETRY_S = 180.0
REQUEST_S = 60.0
CONNECT_S = 5.0
ORIGIN = "origin.txt"  # in a folder that stands for a URL
# To add the sizes of 100,000 files takes 1.6 s. Between two sums, each process may use one part of
# what is left, of so many, until less than a hundredth of the limit is left.
PARTS = 8

_MEMBER = re.compile(r"(?s)(.+\.tar)@(\d+)\+(\d+)/(.*)")

log = logging.getLogger(__name__)


def is_url(name: object) -> bool:
    return "://" in str(name)


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
    # Of a million names of files, few are addresses.
    found = _MEMBER.fullmatch(path) if ".tar@" in path else None
    return found and Member(found[1], int(found[2]), int(found[3]), found[4])


def read_member(member: Member) -> bytes:
    folder, _, name = member.tar.rpartition("/")
    return open_store(folder or "/").read(name, member.begin, member.size)


def read_members(
    members: Sequence[Member], read: Callable[[Member], bytes] = read_member
) -> list[bytes]:
    """Return the bytes of some members, which are read at the same time."""
    return [*_threads().map(read, members)]


@cache
def _threads() -> ThreadPoolExecutor:
    # They stay until the process ends, unlike threads whose name begins with that of the package.
    return ThreadPoolExecutor(THREADS, "store")


class Store:
    """A folder, a bucket, or what is below a name in it: its files by their names relative to it.

    By obstore. Errors are DataErrors; requests to a server are repeated for RETRY_S.
    """

    def __init__(self, base: str):
        self.base = base
        check_packages(base, "obstore")
        import obstore

        self._api = obstore
        seconds = {"timeout": REQUEST_S, "connect_timeout": CONNECT_S}
        client: Any = {name: timedelta(seconds=value) for name, value in seconds.items()}
        # Servers on the own network often have no certificate; the user has named this one.
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        client["allow_http"] = endpoint.startswith("http:") or base.startswith("http:")
        retry: Any = {"max_retries": 1000, "retry_timeout": timedelta(seconds=RETRY_S)}
        with self.explained():
            self._files: Any = (
                obstore.store.from_url(base, client_options=client, retry_config=retry)
                if is_url(base)
                else obstore.store.LocalStore(base)
            )

    def list(self) -> list[str]:
        """Return the names of all files, in order."""
        with self.explained():
            return sorted(item["path"] for item in self._api.list(self._files).collect())

    def version(self, name: str) -> str | None:
        """Return what changes with the content of a file; None if it does not exist."""
        with self.explained(name):
            try:
                head = self._api.head(self._files, name)
            except FileNotFoundError:
                return None
        return f"{head['e_tag']} {head['size']} {head['last_modified']}"

    def read(self, name: str, begin: int, size: int) -> bytes:
        """Return a stretch of a file."""
        with self.explained(name):
            return bytes(self._api.get_range(self._files, name, start=begin, length=size))

    def reader(self, name: str) -> Any:
        """Return a file to read from its begin to its end, within `explained`."""
        return self._api.open_reader(self._files, name, buffer_size=1 << 23)

    def writer(self, name: str) -> Any:
        """Return a new file, which appears at the end of its scope unless that ends by an error."""
        return self._api.open_writer(self._files, name)

    def put(self, name: str, path: Path) -> None:
        """Copy a local file, whole or not at all."""
        # That the file is missing is no error of the store.
        with open(path, "rb") as file, self.explained(name):
            self._api.put(self._files, name, file)

    def fetch(self, name: str, path: Path) -> Path:
        """Copy a file to a local one, and return that."""
        with self.explained(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                for block in self._api.get(self._files, name).stream():
                    file.write(block)
        return path

    def delete(self, names: Sequence[str]) -> None:
        """Delete files in this order."""
        for name in names:
            with self.explained(name):
                self._api.delete(self._files, name)

    @contextmanager
    def explained(self, name: str = "") -> Iterator[None]:
        """Raise errors of a scope as DataErrors that name the file."""
        try:
            yield
        except (self._api.exceptions.BaseError, OSError, ValueError) as error:
            # The library adds pages of details.
            reason = " ".join(str(error).partition("Debug source")[0].split())[:300].rstrip(".")
            raise DataError(
                f"{self.base}/{name} cannot be used: {reason}. Check the name and the permissions;"
                " of a URL, the network, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, and"
                " AWS_ENDPOINT_URL of a server that is not Amazon's."
            ) from error


@cache
def open_store(base: str) -> Store:
    """Return the store of a folder or a URL."""
    return Store(base if is_url(base) else os.path.abspath(base))


class ShardCache:
    """Files with utterances that were read of an object store, up to a limit of all `folders`.

    An epoch reads each utterance once, in a new order. So an utterance that was kept stays:
    whatever replaced something else would be replaced before it is read. Processes of a host share
    them.
    """

    def __init__(self, folder: Path, limit_bytes: float):
        remove_partial_files(folder)
        self._folder, self._limit_bytes = folder, limit_bytes
        self._part_bytes = 0.0
        self._is_full = False
        self._lock = Lock()

    def read(self, member: Member) -> bytes:
        """Return the bytes of a member; raise DataError if the store cannot be read."""
        name = hashlib.sha256(member.address.encode(errors="surrogateescape")).hexdigest()
        path = self._folder / f"{name}.kept"
        with suppress(FileNotFoundError):
            return path.read_bytes()
        content = read_member(member)
        try:
            if self._has_room(len(content)):
                write_whole(path, content)
        except OSError as error:
            self._is_full = True
            log.warning("shards         nothing is kept in %s: %s", self._folder, error.strerror)
        return content

    def _has_room(self, size: int) -> bool:
        with self._lock:
            if self._part_bytes < size and not self._is_full:
                sizes = (file.stat().st_size for file in self._folder.parent.glob("*/*.kept"))
                left = self._limit_bytes - sum(sizes)
                self._part_bytes = left / PARTS
                self._is_full = left <= self._limit_bytes / 100
            self._part_bytes -= size
            return not self._is_full


def stand_in(url: str, name: str) -> Path:
    """Return a folder of the user's cache for a store: ORIGIN has the URL, and there is a copy of
    the file, as it is now, if it exists. Other processes of the host use the same folder.
    """
    url = url.rstrip("/")
    store = open_store(url)
    version = store.version(name)

    def copy(folder: Path) -> None:
        (folder / ORIGIN).write_text(url)
        if version is not None:
            store.fetch(name, folder / name)

    return cached_folder("stores", [url, version], copy)


def base_of(folder: Path) -> str:
    """Return the URL that a folder stands for, or the folder itself."""
    origin = folder / ORIGIN
    return origin.read_text() if origin.exists() else str(folder.absolute())
