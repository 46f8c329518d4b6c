"""The sound of a row of a manifest."""

import numpy as np
import tensorflow as tf

from myxtts.audio.audio_file import read_wave
from myxtts.audio.loudness import with_loudness
from myxtts.corpus.manifest import Manifest


def read_row(manifest: Manifest, row: int, lufs: float | None = None) -> np.ndarray:
    """Read the wave of an utterance at a loudness, or as it is: float32 [samples] in [-1, 1].

    Raises DataError if it cannot be read.
    """
    start = int(manifest.starts[row])
    wave = read_wave(manifest.paths[row], int(manifest.samples[row]), start=start)
    if lufs is None:
        return wave
    with tf.device("/CPU:0"):
        return with_loudness(tf.constant(wave[None]), lufs)[0].numpy()
