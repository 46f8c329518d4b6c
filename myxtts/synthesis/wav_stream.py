"""WAV into a pipe or an open file, while the length is unknown. No TensorFlow."""

import fcntl
import io
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import numpy as np
import soundfile

from myxtts.audio.format import SAMPLE_RATE_HZ

# bytes, as FFmpeg writes them into a pipe: readers go on until the end of the stream
UNKNOWN = 0xFFFFFFFF
BYTES = 2  # of a sample
HEADER_BYTES = 44


class WavStream:
    """Writes waves as one WAV, each at once, with the samples that soundfile would write."""

    def __init__(self, pipe: BinaryIO):
        self._pipe = pipe
        self._written = 0

    def write(self, wave: np.ndarray) -> None:
        """Write a wave, float32 [samples] in [-1, 1]; the first one after the header."""
        raw = io.BytesIO()
        soundfile.write(raw, wave, SAMPLE_RATE_HZ, format="RAW", subtype="PCM_16", endian="LITTLE")
        header = b"" if self._written else wav_header()
        remaining = memoryview(header + raw.getvalue())
        # The stdout of PYTHONUNBUFFERED may take a part.
        while remaining:
            written = self._pipe.write(remaining)
            self._written += written
            remaining = remaining[written:]
        self._pipe.flush()

    def end(self) -> None:
        """Write the length into the header, if the sound is in a file that allows it."""
        if self._written and _can_overwrite(self._pipe):
            self._pipe.seek(-self._written, os.SEEK_CUR)
            self._pipe.write(wav_header(self._written - HEADER_BYTES))
            self._pipe.seek(0, os.SEEK_END)
            self._pipe.flush()


@contextmanager
def wav_stream(pipe: BinaryIO) -> Iterator[WavStream]:
    """Open a WavStream; after an error the sound so far remains, of unknown length."""
    stream = WavStream(pipe)
    yield stream
    stream.end()


def wav_header(data_bytes: int = UNKNOWN) -> bytes:
    """Return the header of a mono 16-bit WAV (Multimedia Data Specifications 1.0)."""
    pcm, channels = 1, 1
    form = struct.pack(
        "<HHIIHH", pcm, channels, SAMPLE_RATE_HZ, SAMPLE_RATE_HZ * BYTES, BYTES, 8 * BYTES
    )
    # Beyond 4 GiB there is no length.
    data_bytes = min(data_bytes, UNKNOWN)
    riff_bytes = min(data_bytes + HEADER_BYTES - 8, UNKNOWN)
    fields = (b"RIFF", riff_bytes, b"WAVE", b"fmt ", len(form), form, b"data", data_bytes)
    return struct.pack("<4sI4s4sI16s4sI", *fields)


def _can_overwrite(pipe: BinaryIO) -> bool:
    """Return whether the start of a stream can be written again: not in a pipe, nor after `>>`."""
    return pipe.seekable() and not fcntl.fcntl(pipe.fileno(), fcntl.F_GETFL) & os.O_APPEND
