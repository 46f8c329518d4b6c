"""Recordings that benchmarks of signal processing measure."""

from pathlib import Path

import numpy as np

from myxtts.audio.format import HOP_SAMPLES
from myxtts.data.audio_file import read_wave
from myxtts.errors import DataError


def recordings(folder: Path, count: int) -> list[np.ndarray]:
    """Read the first waves of a folder, float32 [samples], in whole frames.

    Raises:
        DataError: there is none.
    """
    paths = sorted(folder.glob("*.wav"))[:count]
    if not paths:
        raise DataError(
            f"--waves {folder} has no .wav file. Make a corpus with utilities/make_demo_corpus.py."
        )
    waves = [read_wave(path) for path in paths]
    return [wave[: len(wave) // HOP_SAMPLES * HOP_SAMPLES] for wave in waves]
