"""A bounded copy, on a local disk, of what was read of shards in an object store.

An epoch reads each utterance once, in a new order. So an utterance that was kept stays, and nothing
is kept beyond the limit: whatever replaced something else would be replaced before it is read.
"""

import hashlib
import logging
import os
import zlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from myxtts.errors import DataError
from myxtts.files import FULL
from myxtts.stores import Member, read_member

MARK = b"kept"
# Between two counts of the bytes of all processes, which may exceed the limit by as many files.
COUNT_EVERY = 256

log = logging.getLogger(__name__)


class ShardCache:
    """Sparse files that have bytes of shards at their own places, shared by processes of a host.

    The eight bytes before a member are of its header in the tar file, which is not kept: they hold
    MARK and a checksum of the member. The limit is that of all shards of `folder` and its siblings.
    """

    def __init__(self, folder: Path, limit_bytes: float):
        self._folder, self._limit_bytes = folder, limit_bytes
        self._numbers = count()
        self._has_room = True

    def read(self, member: Member) -> bytes:
        """Return the bytes of a member; raise DataError if the store cannot be read."""
        name = hashlib.sha256(member.tar.encode()).hexdigest()[:32]
        path = self._folder / f"{name}.shard"
        if path.exists():
            with open(path, "rb") as file:
                kept = os.pread(file.fileno(), 8 + member.size, member.begin - 8)
            if kept[:8] == _mark(kept[8:]) and len(kept) == 8 + member.size:
                return kept[8:]
        content = read_member(member)
        try:
            self._keep(path, member, content)
        except OSError as error:
            if error.errno not in FULL:
                raise DataError(f"{path} cannot be written: {error.strerror}.") from error
            self._has_room = False
            log.warning(
                "shards         the disk of %s is full: no more is kept there", self._folder
            )
        return content

    def _keep(self, path: Path, member: Member, content: bytes) -> None:
        if next(self._numbers) % COUNT_EVERY == 0 and self._has_room:
            self._has_room = sum(self._allocated_bytes()) < self._limit_bytes
        if self._has_room:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
            with open(descriptor, "wb", buffering=0) as file:
                os.pwrite(file.fileno(), _mark(content) + content, member.begin - 8)

    def _allocated_bytes(self) -> Iterator[int]:
        for path in self._folder.parent.glob("*/*.shard"):
            yield 512 * path.stat().st_blocks


def _mark(content: bytes) -> bytes:
    return MARK + zlib.crc32(content).to_bytes(4, "little")
