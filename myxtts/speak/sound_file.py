"""Sentences into a sound file or a pipe as they are spoken, and the times of their words."""

import fcntl
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile

from myxtts.audio.audio_file import BlockwiseFile
from myxtts.audio.format import sample_rate_hz
from myxtts.audio.sound_header import HEADER_BYTES, wav_header
from myxtts.base.errors import DataError
from myxtts.base.files import partial_file_of
from myxtts.speak.chunks import SpokenSentence
from myxtts.text.times import write_times

FORMATS = {".wav": "WAV", ".flac": "FLAC", ".ogg": "OGG"}


def write_sentences(
    out: Path | BinaryIO, sentences: Iterable[SpokenSentence], times: Path | None = None
) -> float:
    """Write each sentence as it comes, to a file or as WAV to a pipe; return their seconds.

    `times` is a file for the times of words, written when all is spoken; see `write_times`.
    """
    timed, samples = [], 0
    with sound_file(out) if isinstance(out, Path) else wav_stream(out) as sound:
        for wave, compute_times in sentences:
            sound.write(wave)
            samples += len(wave)
            if times and (words := compute_times()):
                timed.append(words)
    if times:
        write_times(times, timed, samples / sample_rate_hz())
    return samples / sample_rate_hz()


@contextmanager
def sound_file(path: Path) -> Iterator[BlockwiseFile]:
    """Open a sound file, renamed to `path` at the end; after an error nothing is left.

    Raises DataError if writing failed.
    """
    partial = partial_file_of(path)
    kind = {"channels": 1, "format": FORMATS[path.suffix.lower()]}
    try:
        with BlockwiseFile(os.fsencode(partial), "w", sample_rate_hz(), **kind) as file:
            yield file
        os.replace(partial, path)
    except soundfile.LibsndfileError as error:
        raise DataError(
            f"{path} cannot be written: {error.error_string} Free some disk space, or fix the"
            f" permissions of {path.parent}."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


class WavStream:
    """Writes waves as one WAV, each at once, with the samples that soundfile would write."""

    def __init__(self, pipe: BinaryIO):
        self._pipe = pipe
        self._written = 0

    def write(self, wave: np.ndarray) -> None:
        """Write a wave, float32 [samples] in [-1, 1]; the first one after the header."""
        raw = io.BytesIO()
        kind = {"format": "RAW", "subtype": "PCM_16", "endian": "LITTLE"}
        soundfile.write(raw, wave, sample_rate_hz(), **kind)
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
        pipe = self._pipe
        # What is in a pipe, or in a file after `>>`, cannot be written again.
        if not self._written or not pipe.seekable():
            return
        if not fcntl.fcntl(pipe.fileno(), fcntl.F_GETFL) & os.O_APPEND:
            pipe.seek(-self._written, os.SEEK_CUR)
            pipe.write(wav_header(self._written - HEADER_BYTES))
            pipe.seek(0, os.SEEK_END)
            pipe.flush()


@contextmanager
def wav_stream(pipe: BinaryIO) -> Iterator[WavStream]:
    """Open a WavStream; after an error the sound so far remains, of unknown length."""
    stream = WavStream(pipe)
    yield stream
    stream.end()
