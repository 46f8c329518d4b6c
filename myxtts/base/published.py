"""What `myxtts publish` has written, in a folder or at a URL, whose files have checksums."""

import hashlib
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

from myxtts.base.errors import DataError
from myxtts.base.files import cached_folder
from myxtts.base.members import is_url, store_of

CHECKSUMS = "SHA256SUMS"
UNUSED = ("samples/", "README.md")
TIMEOUT_S = 60.0

log = logging.getLogger(__name__)


def local_run(source: str) -> Path:
    """Return the folder of a run or voice that is named by it, or by the URL of a published one.

    A published one is copied to the user's cache: the files that its file of checksums names, but
    for samples. After the URL, #sha256=… is the checksum of this file. Raises DataError if a
    checksum differs, or the URL cannot be used.
    """
    if not is_url(source):
        return Path(source)
    url, _, expected = source.partition("#sha256=")

    def copy(folder: Path) -> None:
        log.info("fetching       %s", url)
        sums = _fetch(url, CHECKSUMS, folder)
        check_digest(source, sums, expected)
        for digest, name in named_files(sums):
            if not name.startswith(UNUSED):
                check_digest(source, _fetch(url, name, folder), digest)

    return cached_folder("published", source, copy)


# HTTP needs no package. Other stores are opened by one.
def _fetch(url: str, name: str, folder: Path) -> Path:
    """Copy a file below a URL into a folder, and return its path."""
    import urllib.parse
    import urllib.request  # takes a while, and few voices are fetched

    target = folder / name
    if not url.startswith(("http://", "https://")):
        return store_of(url.rstrip("/")).fetch(name, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    source = f"{url.rstrip('/')}/{urllib.parse.quote(name)}"
    try:
        answer = urllib.request.urlopen(source, timeout=TIMEOUT_S)
        with answer, open(target, "wb") as file:
            shutil.copyfileobj(answer, file)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{source} cannot be fetched: {error}. Check the URL and the network, or give a folder."
        ) from error
    return target


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
