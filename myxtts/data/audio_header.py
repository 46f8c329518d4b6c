"""What an audio file says about itself, from its header and a bounded number of reads.

Headers of the usual WAV are read here, since a corpus has a million of them; libsndfile reads all others.
"""

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np
import soundfile

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.errors import DataError

# body of the format chunk: PCM, mono, rate, bytes a second, bytes a frame, bits a sample
NATIVE_FORMAT = struct.pack("<HHIIHH", 1, 1, SAMPLE_RATE_HZ, 2 * SAMPLE_RATE_HZ, 2, 16)
STREAMED_BYTES = 0xFFFFFFFF  # data length of a WAV that was written to a pipe
MOST_CHUNKS = 64  # a real file has fewer than ten; bounds the reads of a hostile one
RATE_LIMITS_HZ = (1_000, 768_000)
BLOCK_SAMPLES = 65_536


class UnusableAudio(DataError):
    """An audio file that cannot be used: `reason` is the same for all files of its kind, `detail` is its own."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class AudioHeader:
    """Length and format of one file.

    samples: per channel, at the file's own rate.
    native: `tf.audio.decode_wav` reads it as it is (RIFF, PCM, 16 bit, mono, SAMPLE_RATE_HZ).
    floating: its samples are floats, so some of them may not be finite.
    """

    samples: int
    rate_hz: int
    native: bool
    floating: bool


def read_header(path: str) -> AudioHeader:
    """Reads the header of the file at `path`; raises UnusableAudio where it is missing, empty, unreadable or cut."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # a named pipe would block for ever
            raise UnusableAudio("not a file")
        if status.st_size == 0:
            raise UnusableAudio("empty file")
        with open(path, "rb") as file:
            header = _native_header(file, status.st_size)
    except FileNotFoundError:
        raise UnusableAudio("missing file") from None
    except OSError as error:
        raise UnusableAudio("unreadable", error.strerror or str(error)) from error
    header = header or _libsndfile_header(path)
    low_hz, high_hz = RATE_LIMITS_HZ
    if not low_hz <= header.rate_hz <= high_hz:
        raise UnusableAudio("unreadable", f"a sample rate of {header.rate_hz} Hz")
    return header


def check_finite(path: str) -> None:
    """Reads all samples of the file at `path`; raises UnusableAudio at the first NaN or infinity."""
    try:
        with soundfile.SoundFile(path) as sound:
            for position, block in enumerate(sound.blocks(BLOCK_SAMPLES, dtype="float64", always_2d=True)):
                finite = np.isfinite(block).all(axis=1)
                if not finite.all():
                    raise UnusableAudio("not finite", f"sample {position * BLOCK_SAMPLES + int(finite.argmin())}")
    except soundfile.LibsndfileError as error:
        raise UnusableAudio("unreadable", error.error_string) from error


class _Chunk(NamedTuple):
    """A RIFF chunk: the bytes that it promises, those from its start to the end of the file, the first 16."""

    name: bytes
    promised: int
    there: int
    body: bytes


def _native_header(file: BinaryIO, size: int) -> AudioHeader | None:
    """The header of a WAV that TensorFlow decodes; None leaves the file to libsndfile, which passes over truncation."""
    start = file.read(12)
    if start[:4] != b"RIFF" or start[8:] != b"WAVE":
        return None
    chunks = list(_chunks(file, size))
    sound = [chunk for chunk in chunks if chunk.name == b"data"]
    for chunk in sound:
        if chunk.there < chunk.promised != STREAMED_BYTES:
            raise UnusableAudio("truncated", f"{chunk.promised} bytes of sound promised, {chunk.there} there")
    is_native = (
        len(sound) == 1
        and (chunks[0].name, chunks[0].body) == (b"fmt ", NATIVE_FORMAT)
        and chunks[0].promised in (16, 18)  # so not 0xFFFE, the extensible format
        and all(chunk.promised % 2 == 0 for chunk in chunks)  # decode_wav knows no padding byte,
        and chunks[-1].promised == chunks[-1].there  # nor anything behind the chunks
    )
    return AudioHeader(sound[0].promised // 2, SAMPLE_RATE_HZ, native=True, floating=False) if is_native else None


def _chunks(file: BinaryIO, size: int) -> Iterator[_Chunk]:
    begin = 12
    for _ in range(MOST_CHUNKS):
        file.seek(begin)
        head = file.read(24)
        if len(head) < 8:
            return
        promised = int.from_bytes(head[4:8], "little")
        begin += 8
        yield _Chunk(head[:4], promised, size - begin, head[8 : 8 + promised])
        begin += promised + promised % 2


def _libsndfile_header(path: str) -> AudioHeader:
    try:
        with soundfile.SoundFile(path) as sound:
            samples, rate_hz = sound.frames, sound.samplerate
            if samples / rate_hz > 1e9:  # libsndfile's sign for a FLAC stream
                raise UnusableAudio("unreadable", "the header does not say how long it is; write the file anew")
            if samples and not _reads_sample(sound, samples - 1):
                raise UnusableAudio("truncated", f"{samples} samples promised, the last is not there")
            return AudioHeader(samples, rate_hz, native=False, floating=sound.subtype in ("FLOAT", "DOUBLE"))
    except soundfile.LibsndfileError as error:
        raise UnusableAudio("unreadable", error.error_string) from error
    except TypeError as error:  # soundfile takes the name *.raw for data without a header
        raise UnusableAudio("unreadable", "raw samples without a header") from error


def _reads_sample(sound: soundfile.SoundFile, position: int) -> bool:
    """Whether a cut FLAC or MP3 still has this sample; its header alone does not tell."""
    try:
        sound.seek(position)
        return len(sound.read(1)) == 1
    except soundfile.LibsndfileError:
        return False
