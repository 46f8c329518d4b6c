"""Keeps utterances that were read of an object store in a folder of this host.

What comes in is a member of a shard that tf.data's threads ask for, several at the same time. The
first epoch reads it of the store and writes it to a file, as long as there is room. Later epochs
read the file. What goes out are the bytes of the member, wherever they came from.
"""

import hashlib
import logging
from contextlib import suppress
from pathlib import Path
from threading import Lock

from myxtts.base.files import remove_partial_files, write_whole
from myxtts.base.members import Member, read_member

# To add the sizes of 100,000 files takes 1.6 s, so this is done rarely. After each sum, a process
# may use an eighth of the room left, until less than a hundredth of the limit is left.
PARTS = 8

log = logging.getLogger(__name__)


class ShardCache:
    """Files with utterances that were read of an object store, up to a limit of all `folders`.

    An epoch reads each utterance once, in a new order. So an utterance that was kept stays: if new
    ones replaced old ones, they would be replaced in turn before they are read again. All processes
    of a host share the files and the limit.
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
            line = "shards         nothing is kept in %s (--shard-cache-gb): %s"
            log.warning(line, self._folder, error.strerror)
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
