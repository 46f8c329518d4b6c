"""Shards of a corpus and files of a run, in a folder or an object store: one interface for both.

An utterance within a tar file has an address, which is used like the name of a file:
FOLDER/shard.tar@BEGIN+SIZE/NAME, where FOLDER may be the URL of an object store.
"""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from myxtts.errors import DataError
from myxtts.files import cache_folder, file_stamp, locked_file, new_folder, write_whole

# Objects that are read at the same time: they mostly wait for the network.
THREADS = 32
RETRY_S = 180.0
REQUEST_S = 60.0
CONNECT_S = 5.0
ORIGIN = "origin.txt"  # in a folder that stands for a URL

_URL = re.compile(r"[a-z][a-z0-9+.-]+://.+")
_MEMBER = re.compile(r"(?s)(.+\.tar)@(\d+)\+(\d+)/(.*)")


def is_url(name: str | Path | None) -> bool:
    return _URL.match(str(name)) is not None


def place_of(base: str, name: str) -> str:
    """Return the place of a file: a name that is relative to a folder or URL, or a whole one."""
    return name if is_url(name) else os.path.join(base, name)


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
    """Return the bytes of some members, those in object stores all at the same time."""
    if not any(is_url(member.tar) for member in members):
        return [*map(read, members)]
    return [*_threads().map(read, members)]


@cache
def _threads() -> ThreadPoolExecutor:
    # They stay until the process ends, unlike threads whose name begins with that of the package.
    return ThreadPoolExecutor(THREADS, "store")


class Store:
    """A folder: its files by their names relative to it, with /. Errors are DataErrors."""

    staging: str | None
    """A folder from which `put` takes files; None is any."""

    def __init__(self, base: str):
        self.base = self.staging = base

    def list(self) -> dict[str, int]:
        """Return the size of each file in and below the folder, by name, in order."""
        found = {}
        with self._explained():
            for folder, _, names in os.walk(self.base, onerror=_raise):
                for path in (os.path.join(folder, name) for name in names):
                    found[os.path.relpath(path, self.base)] = os.path.getsize(path)
        return dict(sorted(found.items()))

    def version(self, name: str) -> str | None:
        """Return what changes with the content of a file; None if it does not exist."""
        stamp = file_stamp(os.path.join(self.base, name))
        return str(stamp) if stamp else None

    def read(self, name: str, begin: int, size: int) -> bytes:
        """Return a stretch of a file."""
        with self._explained(name), open(os.path.join(self.base, name), "rb") as file:
            content = os.pread(file.fileno(), size, begin)
        if len(content) < size:
            raise DataError(f"{self.base}/{name} ends before byte {begin + size}. Restore it.")
        return content

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open a file; that of an object store is copied first."""
        with self._explained(name), open(os.path.join(self.base, name), "rb") as file:
            yield file

    def put(self, name: str, path: Path, keep: bool = False) -> None:
        """Move a file into the folder, or copy it with `keep`, whole or not at all."""
        target = Path(self.base, name)
        with self._explained(name):
            target.parent.mkdir(parents=True, exist_ok=True)
            if keep:
                write_whole(target, path.read_bytes())
            else:
                os.replace(path, target)

    def fetch(self, name: str, path: Path) -> Path:
        """Copy a file to `path`, and return that."""
        with self._explained(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(os.path.join(self.base, name), path)
        return path

    def delete(self, names: Sequence[str]) -> None:
        """Delete files in this order."""
        for name in names:
            with self._explained(name):
                os.unlink(os.path.join(self.base, name))

    @contextmanager
    def _explained(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            raise DataError(f"{self.base}/{name} cannot be used: {reason}.") from error


class ObjectStore(Store):
    """A bucket, or what is below a name in it, by obstore. Reads are repeated for RETRY_S."""

    staging = None

    def __init__(self, base: str):
        self.base = base
        try:
            import obstore
        except ImportError as error:
            raise DataError(
                f"{base} is used by obstore, which is not installed. Install it with `pip install"
                " obstore`, or give a local folder."
            ) from error
        seconds = {"timeout": REQUEST_S, "connect_timeout": CONNECT_S}
        client: Any = {name: timedelta(seconds=value) for name, value in seconds.items()}
        # Servers on the own network often have no certificate; the user has named this one.
        client["allow_http"] = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http:")
        retry: Any = {"max_retries": 1000, "retry_timeout": timedelta(seconds=RETRY_S)}
        self._api = obstore
        with self._explained():
            self._bucket: Any = obstore.store.from_url(
                base, client_options=client, retry_config=retry
            )

    def list(self) -> dict[str, int]:
        with self._explained():
            batches = [*self._api.list(self._bucket)]
        found = {item["path"]: item["size"] for item in chain.from_iterable(batches)}
        return dict(sorted(found.items()))

    def version(self, name: str) -> str | None:
        with self._explained(name):
            try:
                head = self._api.head(self._bucket, name)
            except FileNotFoundError:
                return None
        return f"{head['e_tag']} {head['size']} {head['last_modified']}"

    def read(self, name: str, begin: int, size: int) -> bytes:
        with self._explained(name):
            content = self._api.get_range(self._bucket, name, start=begin, length=size)
        if len(content) < size:
            raise DataError(f"{self.base}/{name} ends before byte {begin + size}. Restore it.")
        return bytes(content)

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
            yield opened.enter_context(self.fetch(name, Path(folder, "file")).open("rb"))

    def put(self, name: str, path: Path, keep: bool = False) -> None:
        # That the file is missing is no error of the store.
        with open(path, "rb") as file, self._explained(name):
            self._api.put(self._bucket, name, file)
        if not keep:
            path.unlink()

    def fetch(self, name: str, path: Path) -> Path:
        with self._explained(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as file:
                for block in self._api.get(self._bucket, name).stream():
                    file.write(block)
        return path

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            with self._explained(name):
                self._api.delete(self._bucket, name)

    @contextmanager
    def _explained(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except (self._api.exceptions.BaseError, OSError, ValueError) as error:
            # The library adds pages of details.
            reason = " ".join(str(error).partition("Debug source")[0].split())[:300]
            raise DataError(
                f"{self.base}/{name} cannot be used: {reason.rstrip('.')}. Check the name, the"
                " network and the credentials: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,"
                " AWS_REGION, and AWS_ENDPOINT_URL of a server that is not Amazon's."
            ) from error


def _raise(error: OSError) -> None:
    raise error


@cache
def open_store(base: str) -> Store:
    """Return the store of a folder or a URL."""
    return ObjectStore(base) if is_url(base) else Store(base)


def stand_in(url: str, name: str) -> Path:
    """Return a folder of the user's cache for a store: ORIGIN has the URL, and there is a copy of
    the file, as it is now, if it exists. Other processes of the host use the same folder.
    """
    url = url.rstrip("/")
    store = open_store(url)
    version = store.version(name)
    digest = hashlib.sha256(f"{url} {version}".encode()).hexdigest()[:32]
    folder = cache_folder() / "stores" / digest
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked_file(folder.with_suffix(".lock")):
            # Another process may just have made it.
            if not folder.exists():
                with new_folder(folder) as partial:
                    (partial / ORIGIN).write_text(url)
                    if version is not None:
                        store.fetch(name, partial / name)
    return folder


def run_folder(runs_dir: str, run: str) -> Path:
    """Return the local folder of a run, which is in the user's cache if `runs_dir` is a URL."""
    if not is_url(runs_dir):
        return Path(runs_dir, run)
    digest = hashlib.sha256(runs_dir.rstrip("/").encode()).hexdigest()[:16]
    return cache_folder() / "runs" / digest / run


def base_of(folder: Path) -> str:
    """Return the URL that a folder stands for, or the folder itself."""
    origin = folder / ORIGIN
    return origin.read_text() if origin.exists() else str(folder.absolute())
