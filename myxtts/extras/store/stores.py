"""Object stores and folders: files by their names, which obstore reads and writes."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from myxtts.base.errors import DataError, check_packages
from myxtts.base.members import is_url

RETRY_S = 180.0
REQUEST_S = 60.0
CONNECT_S = 5.0


log = logging.getLogger(__name__)


class Store:
    """A folder, a bucket, or a prefix in it: its files by their names relative to it.

        store = Store("s3://bucket/corpus")
        index = store.fetch("index.arrow", Path("index.arrow"))

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
            self._files: Any
            if is_url(base):
                self._files = obstore.store.from_url(
                    base, client_options=client, retry_config=retry
                )
            else:
                self._files = obstore.store.LocalStore(base)

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


def open_store(base: str) -> Store:
    """Return the store of a folder or a URL, by obstore."""
    if is_url(base):
        return Store(base)
    return Store(os.path.abspath(base))
