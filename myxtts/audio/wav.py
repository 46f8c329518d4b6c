"""Writing WAV files."""

import io
from pathlib import Path

import numpy as np
import soundfile

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.files import attach_path_to_errors


def write_wav(path: Path, wave: np.ndarray) -> None:
    """Write a wave, float32 [samples] in [-1, 1], as 16-bit WAV.

    Raises:
        OSError: naming the file. soundfile would report any refusal of the disk as "System error".
    """
    content = io.BytesIO()
    soundfile.write(content, wave, SAMPLE_RATE_HZ, format="WAV", subtype="PCM_16")
    with attach_path_to_errors(path):
        path.write_bytes(content.getvalue())
