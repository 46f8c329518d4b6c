"""The corpus decoded once, as one memory-mapped file of PCM."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from myxtts.data.manifest import Manifest
from myxtts.data.wave_file import read_pcm


def open_cache(manifest: Manifest, folder: Path, workers: int) -> np.ndarray:
    """Map the decoded corpus, and make it first where it is missing.

    The file is named by the corpus' fingerprint, so another corpus gets another file; it is
    written under a temporary name and then renamed.

    Returns:
        int16 [all samples], read-only, the utterances in the manifest's order.

    Raises:
        DataError: an utterance cannot be read.
        OSError: the disk is full.
    """
    path = folder / f"pcm-{manifest.fingerprint[:16]}.int16"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _write(manifest, path, workers)
    return np.memmap(path, np.int16, mode="r")


def _write(manifest: Manifest, path: Path, workers: int) -> None:
    temporary = path.with_suffix(".partial")
    with ThreadPoolExecutor(workers) as pool, open(temporary, "wb") as file:
        waves = pool.map(read_pcm, manifest.paths, manifest.samples.tolist())
        for wave in tqdm(waves, "decode", len(manifest.paths), unit="utt", disable=None):
            file.write(wave.tobytes())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
