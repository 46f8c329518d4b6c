"""Reads batches from the decoded corpus, a memory-mapped file of PCM."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from myxtts.data.audio_file import read_pcm
from myxtts.data.manifest import Manifest
from myxtts.data.readers.base import ReadRows
from myxtts.errors import DataError

CHUNK_UTTERANCES = 256  # decoded at a time; limits the memory if the disk is slow


def open_cache(manifest: Manifest, folder: Path, workers: int) -> np.ndarray:
    """Map the decoded corpus; decode it first if the cache is missing or older than a file of the corpus.

    The name of the file contains the fingerprint of the corpus, so each corpus has its own file. The file is written
    under a temporary name and then renamed.

    Returns:
        int16 [all samples], read-only, the utterances in the order of the manifest.

    Raises:
        DataError: an utterance cannot be read.
        OSError: a file of the corpus has disappeared, or the disk is full.
    """
    path = folder / f"pcm-{manifest.fingerprint[:16]}.int16"
    if not _is_current(path, manifest):
        folder.mkdir(parents=True, exist_ok=True)
        _write(manifest, path, workers)
    return np.memmap(path, np.int16, mode="r")


def rows_from_cache(manifest: Manifest, pcm: np.ndarray) -> ReadRows:
    """Return what reads rows of batches from the decoded corpus.

    Args:
        pcm: int16 [all samples], as by `open_cache`.
    """
    offsets = np.concatenate([[0], np.cumsum(manifest.samples, dtype=np.int64)])

    def copy(rows, starts, samples, padded):
        batch = np.zeros((len(rows), padded), np.int16)
        # One copy per row; an index array would take 8 times the memory of the data.
        for i, begin in enumerate(offsets[rows] + starts):
            batch[i, : samples[i]] = pcm[begin : begin + samples[i]]
        return batch

    def read_rows(rows, starts, samples, padded):
        arguments = [rows, starts, samples, padded]
        return tf.ensure_shape(tf.numpy_function(copy, arguments, tf.int16, stateful=False), [None, None])

    return read_rows


def _is_current(path: Path, manifest: Manifest) -> bool:
    """Whether the cache is complete and newer than all files; the fingerprint contains only their lengths."""
    if not path.exists():
        return False
    cached = path.stat()
    complete = cached.st_size == 2 * int(manifest.samples.sum(dtype=np.int64))
    # ctime is set when a file is moved here; mtime is not
    return complete and cached.st_mtime_ns > max(os.stat(source).st_ctime_ns for source in manifest.paths)


def _read(path: str, samples: int) -> np.ndarray:
    try:
        return read_pcm(path, samples)
    except DataError as error:
        raise DataError(f"{error}. Repair the file, or remove its row from the corpus.") from error


def _write(manifest: Manifest, path: Path, workers: int) -> None:
    temporary = path.with_suffix(".partial")
    samples = manifest.samples.tolist()
    with (
        ThreadPoolExecutor(workers) as pool,
        open(temporary, "wb") as file,
        tqdm(total=len(manifest), desc="decode", unit="utt", disable=None) as bar,
    ):
        for begin in range(0, len(manifest), CHUNK_UTTERANCES):
            chunk = slice(begin, begin + CHUNK_UTTERANCES)
            for wave in pool.map(_read, manifest.paths[chunk], samples[chunk]):
                file.write(wave.tobytes())
                bar.update()
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
