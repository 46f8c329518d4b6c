"""Keeps utterances that were read of an object store in a folder of this host."""

import hashlib
import logging
from contextlib import suppress
from pathlib import Path
from threading import Lock

from myxtts.base.files import remove_partial_files, write_whole
from myxtts.base.members import Member, read_member

# To add the sizes of 100,000 files takes 1.6 s. Between two sums, each process may use one part of
# what is left, of so many, until less than a hundredth of the limit is left.
PARTS = 8


log = logging.getLogger(__name__)


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
