"""Reads batches from the decoded corpus, a memory-mapped file of PCM (--cache-dataset).

What comes in is a manifest. On the main thread, before training, `open_cache` decodes all
utterances into one file, unless an earlier run has left it. Then the threads of tf.data call the
function that `rows_from_cache` returns: it copies stretches of that file. What goes out are the
same rows that `reading` would have read from the files.
"""

import hashlib
import json
import logging
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

from myxtts.audio.audio_file import read_pcm
from myxtts.base.errors import DataError
from myxtts.base.files import FileStamp, file_stamp, locked_file
from myxtts.batches.reading import ReadRows, rows_by_numpy
from myxtts.corpus.manifest import DIGEST_BYTES, Manifest

# So many decoded utterances wait in memory if the disk is slower than the decoding.
CHUNK_UTTERANCES = 256

CHECKSUM = np.dtype("<u4")

log = logging.getLogger(__name__)


# A file is current if its size is right and it ends with the digest of the corpus files as they are
# now. If there is none, one process takes the lock of the partial file and decodes into it. Others
# wait for the lock, and then find a current file. Renaming comes last, so a file under the final
# name is always complete.
def open_cache(manifest: Manifest, folder: Path, workers: int) -> Path:
    """Return the decoded corpus; decode it first if it is missing or one of its files has changed.

    Its name contains a digest of the corpus and of its paths, so each corpus has its own file. The
    samples of all utterances, int16, are followed by a checksum of each, and a digest of the sizes
    and times of the files that they were decoded from. Raises DataError if an utterance cannot be
    read, or changes meanwhile.
    """
    path = folder / f"pcm-{_digest(manifest.fingerprint, [*manifest.paths]).hex()[:16]}.int16"
    if _is_current(path, manifest):
        return path
    folder.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    with locked_file(temporary) as file:
        if _is_current(path, manifest):
            # Another process has just made it.
            temporary.unlink()
            return path
        try:
            _write(manifest, file, workers)
        except BaseException:
            temporary.unlink()
            raise
        os.replace(temporary, path)
    return path


def rows_from_cache(manifest: Manifest, path: Path) -> ReadRows:
    """Return a reader of rows from the decoded corpus, which reads a damaged one from its file.

    It compares the checksum of a row at the first reading, which takes some 50 µs for 5 s.
    """
    pcm = np.memmap(path, np.int16, mode="r", shape=(_sample_count(manifest),))
    checksums = np.fromfile(path, CHECKSUM, len(manifest), offset=pcm.nbytes)
    offsets = np.concatenate([[0], np.cumsum(manifest.samples, dtype=np.int64)])
    is_intact = np.zeros(len(manifest), bool)
    decoded: dict[int, np.ndarray] = {}

    def wave(row: int) -> np.ndarray:
        if row in decoded:
            return decoded[row]
        found = pcm[offsets[row] : offsets[row + 1]]
        if not is_intact[row]:
            if zlib.crc32(found.data) != checksums[row]:
                text = "%s is damaged where it has %s, which is read instead"
                log.warning(text, path, manifest.paths[row])
                start = int(manifest.starts[row])
                found = decoded[row] = _read(manifest.paths[row], len(found), start)
            is_intact[row] = True
        return found

    return rows_by_numpy(lambda rows: map(wave, rows.tolist()))


def _digest(*values: object) -> bytes:
    return hashlib.sha256(json.dumps(values).encode()).digest()


def _sample_count(manifest: Manifest) -> int:
    return int(manifest.samples.sum(dtype=np.int64))


def _stamps(manifest: Manifest) -> list[FileStamp | None]:
    return [file_stamp(path) for path in manifest.paths]


def _is_current(path: Path, manifest: Manifest) -> bool:
    """Whether the cache is complete, and was decoded from the files as they are now."""
    size = 2 * _sample_count(manifest) + CHECKSUM.itemsize * len(manifest) + DIGEST_BYTES
    if not path.exists() or path.stat().st_size != size:
        return False
    with open(path, "rb") as file:
        file.seek(-DIGEST_BYTES, os.SEEK_END)
        return file.read() == _digest(_stamps(manifest))


def _write(manifest: Manifest, file: BinaryIO, workers: int) -> None:
    """Decode the corpus into a file. Raises DataError if a file of the corpus changes meanwhile."""
    file.truncate(0)
    checksums = np.zeros(len(manifest), CHECKSUM)
    before = _stamps(manifest)
    paths = list(manifest.paths)
    samples, starts = manifest.samples.tolist(), manifest.starts.tolist()
    with (
        ThreadPoolExecutor(workers) as pool,
        tqdm(total=len(paths), desc="decode", unit="utt", disable=None) as bar,
    ):
        for begin in range(0, len(paths), CHUNK_UTTERANCES):
            chunk = slice(begin, begin + CHUNK_UTTERANCES)
            waves = pool.map(_read, paths[chunk], samples[chunk], starts[chunk])
            for row, wave in enumerate(waves, begin):
                file.write(wave.tobytes())
                checksums[row] = zlib.crc32(wave.data)
                bar.update()
    for path, stamp, stamp_before in zip(manifest.paths, _stamps(manifest), before, strict=True):
        if stamp != stamp_before:
            raise DataError(
                f"{path} has changed while it was decoded for --cache-dataset. Stop the program"
                " that writes it, and try again."
            )
    file.write(checksums.tobytes() + _digest(before))
    file.flush()
    os.fsync(file.fileno())


def _read(path: str, samples: int, start: int) -> np.ndarray:
    try:
        return read_pcm(path, samples, start=start)
    except DataError as error:
        raise DataError(f"{error}. Repair the file, or remove its row from the corpus.") from error
