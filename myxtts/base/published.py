"""What `myxtts publish` has written, in a folder or at a URL, whose files have checksums."""

import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path

from myxtts.base.errors import DataError
from myxtts.base.files import cached_folder
from myxtts.base.members import is_url, store_of

CHECKSUMS = "SHA256SUMS"
NEEDED = ("checkpoints/", "config.yaml")

log = logging.getLogger(__name__)


def local_run(source: str) -> Path:
    """Return the folder of a run that is named by its folder or by the URL of a published one.

    A published run is copied to the user's cache: the files that its file of checksums names. After
    the URL, #sha256=… is the checksum of this file. Raises DataError if a checksum differs, or the
    URL cannot be used.
    """
    if not is_url(source):
        return Path(source)
    url, _, expected = source.partition("#sha256=")
    store = store_of(url.rstrip("/"))

    def copy(folder: Path) -> None:
        sums = store.fetch(CHECKSUMS, folder / CHECKSUMS)
        check_digest(source, sums, expected)
        for digest, name in named_files(sums):
            if name.startswith(NEEDED):
                check_digest(source, store.fetch(name, folder / name), digest)
        log.info("fetched        %s", url)

    return cached_folder("published", source, copy)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, as `sha256sum` writes it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def named_files(sums: Path) -> Iterator[tuple[str, str]]:
    """Yield the checksum and the name of each file, below the folder, that a file names."""
    for line in sums.read_text("utf-8").splitlines():
        digest, _, name = line.partition("  ")
        if ".." not in name and not name.startswith("/"):
            yield digest, name


def check_digest(source: str, path: Path, expected: str) -> None:
    """Raise DataError if a file of a source has another SHA-256 than is expected."""
    digest = file_digest(path)
    if expected and digest != expected:
        raise DataError(
            f"{path.name} of {source} has the SHA-256 {digest}, but must have {expected}. Ask for"
            " an undamaged copy, or correct the checksum."
        )
