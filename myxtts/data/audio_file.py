"""Audio files of a corpus and single recordings: headers, and PCM at 22,050 Hz. No TensorFlow.

Headers are read with a bounded number of reads. This module parses those of plain WAV files itself,
since a corpus may have a million of them; libsndfile reads all others, after ffmpeg if need be.
"""

import io
import math
import os
import stat
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
import soxr

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.data.ffmpeg import libsndfile_path
from myxtts.errors import DataError
from myxtts.files import attach_path_to_errors
from myxtts.stores import member_of, read_member

# Needs no conversion: PCM, mono, rate, bytes per second, bytes per frame, bits per sample.
NATIVE_FORMAT = struct.pack("<HHIIHH", 1, 1, SAMPLE_RATE_HZ, 2 * SAMPLE_RATE_HZ, 2, 16)
# A program that writes to a pipe does not know the data length, and writes this instead, as FFmpeg
# does: readers go on until the end of the stream.
STREAMED_BYTES = 0xFFFFFFFF
HEADER_BYTES = 44
# Real files have fewer than ten; limits the reads of a damaged one.
MAX_CHUNKS = 64
RATE_LIMITS_HZ = (1_000, 768_000)
# Per channel: all channels of a long recording may not fit into memory.
BLOCK_SAMPLES = 65_536
# A megabyte of FLAC may hold days of silence.
MAX_RECORDING_S = 4 * 3600.0
# More than the resampling filter sees, so that a cut does not change the samples near it.
FILTER_S = 1.0
# More silence than before the speech of any reference.
TRIMMED_S = 30.0
# Instead of the first sample of a stretch.
WHOLE = -1
# Silence at the ends is cut off in pieces of this length, of which the inner ones are kept.
END_SAMPLES = 512
KEPT_ENDS = 2
RECORDING = "recording", 0.1, "Give audio files, each with at least 0.1 s of speech."
"""Role, shortest length in seconds, and advice, for `check_recording`."""
REFERENCE = (
    *("reference", 0.5),
    "Give audio files of the speaker with --reference, each with at least 0.5 s of speech.",
)


class UnusableAudio(DataError):
    """An audio file that cannot be used: the kind of fault, and what is specific to the file."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class AudioHeader:
    """Length of one file, in samples per channel, and its format.

    `tf.audio.decode_wav` reads a native file unconverted; floating samples may not be finite.
    """

    samples: int
    rate_hz: int
    native: bool
    floating: bool


def read_header(path: str) -> AudioHeader:
    """Read a header; raise UnusableAudio if the file is missing, empty, unreadable or truncated."""
    member = member_of(path)
    try:
        # A named pipe would block forever.
        if member is None and not stat.S_ISREG(os.stat(path).st_mode):
            raise UnusableAudio("not a file")
        with io.BytesIO(read_member(member)) if member else open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                raise UnusableAudio("empty file")
            file.seek(0)
            header = _native_header(file, size)
            if header is None:
                file.seek(0)
                header = _libsndfile_header(file if member else libsndfile_path(path))
    except UnusableAudio:
        raise
    except FileNotFoundError:
        raise UnusableAudio("missing file") from None
    except OSError as error:
        raise UnusableAudio("unreadable", error.strerror or str(error)) from error
    except DataError as error:
        raise UnusableAudio("unreadable", str(error)) from error
    low_hz, high_hz = RATE_LIMITS_HZ
    if not low_hz <= header.rate_hz <= high_hz:
        raise UnusableAudio("unreadable", f"a sample rate of {header.rate_hz} Hz")
    # TensorFlow's operations read whole files only.
    return replace(header, native=False) if member else header


def check_finite(path: str) -> None:
    """Read all samples; raise UnusableAudio at the first NaN or infinity."""
    try:
        with open_audio(path) as file, open_sound(file) as sound:
            blocks = sound.blocks(BLOCK_SAMPLES, dtype="float32", always_2d=True)
            for number, block in enumerate(blocks):
                finite = np.isfinite(block).all(axis=1)
                if not finite.all():
                    sample = number * BLOCK_SAMPLES + int(finite.argmin())
                    raise UnusableAudio("not finite", f"sample {sample}")
    except soundfile.LibsndfileError as error:
        raise UnusableAudio("unreadable", error.error_string) from error


def _native_header(file: BinaryIO, size: int) -> AudioHeader | None:
    """The header of a WAV file that TensorFlow decodes, or None; raises if a WAV is truncated."""
    start = file.read(12)
    if start[:4] != b"RIFF" or start[8:] != b"WAVE":
        return None
    chunks = []
    begin = 12
    for _ in range(MAX_CHUNKS):
        file.seek(begin)
        head = file.read(24)
        if len(head) < 8:
            break
        promised = int.from_bytes(head[4:8], "little")
        begin += 8
        chunks.append((head[:4], promised, size - begin, head[8 : 8 + promised]))
        begin += promised + promised % 2
    sound = [chunk for chunk in chunks if chunk[0] == b"data"]
    for _, promised, available, _ in sound:
        if available < promised != STREAMED_BYTES:
            detail = f"the header promises {promised} bytes of audio, but the file has {available}"
            raise UnusableAudio("truncated", detail)
    # A length of 16 or 18 excludes the extensible format. decode_wav knows neither padding bytes
    # nor bytes after the last chunk.
    is_native = (
        len(sound) == 1
        and (chunks[0][0], chunks[0][3]) == (b"fmt ", NATIVE_FORMAT)
        and chunks[0][1] in (16, 18)
        and all(promised % 2 == 0 for _, promised, _, _ in chunks)
        and chunks[-1][1] == chunks[-1][2]
    )
    if not is_native:
        return None
    return AudioHeader(sound[0][1] // 2, SAMPLE_RATE_HZ, native=True, floating=False)


def _libsndfile_header(source: str | BinaryIO) -> AudioHeader:
    try:
        with soundfile.SoundFile(
            os.fsencode(source) if isinstance(source, str) else source
        ) as sound:
            samples = sound.frames
            # libsndfile's length of a FLAC stream is 2^63 - 1.
            if samples / sound.samplerate > 1e9:
                detail = "the header does not contain the length; write the file again"
                raise UnusableAudio("unreadable", detail)
            # Of an OGG file the length is that of its last page. libvorbis crashes if it seeks with
            # damaged codebooks.
            last = 0 if sound.format == "OGG" else samples - 1
            if samples and not _reads_sample(sound, last):
                detail = f"the header promises {samples} samples, but not all can be decoded"
                raise UnusableAudio("truncated", detail)
            is_floating = sound.subtype in ("FLOAT", "DOUBLE")
            return AudioHeader(samples, sound.samplerate, native=False, floating=is_floating)
    except soundfile.LibsndfileError as error:
        raise UnusableAudio("unreadable", error.error_string) from error
    except TypeError as error:
        # soundfile takes *.raw for data without a header.
        raise UnusableAudio("unreadable", "raw samples without a header") from error


def _reads_sample(sound: soundfile.SoundFile, position: int) -> bool:
    """Whether the sample exists: the header of a truncated FLAC or MP3 file is intact."""
    try:
        # An MP3 file whose header was changed ends at another position.
        if position and sound.seek(position) != position:
            return False
        return len(sound.read(1)) == 1
    except soundfile.LibsndfileError:
        return False


def resampled_length(samples, rate_hz):
    """Return the length at 22,050 Hz, rounded half up as by soxr; for integers or int64 arrays."""
    return (2 * samples * SAMPLE_RATE_HZ + rate_hz) // (2 * rate_hz)


def open_audio(path: str | Path, content: bytes | None = None) -> BinaryIO:
    """Open what libsndfile reads of a file or a member of a shard, whose `content` may be given."""
    if content is None and (member := member_of(str(path))):
        content = read_member(member)
    if content is not None:
        return io.BytesIO(content)
    # The errors of `open` are clearer than libsndfile's "System error".
    with open(path, "rb"):
        return open(libsndfile_path(str(path)), "rb")


def open_sound(file: BinaryIO) -> soundfile.SoundFile:
    source = file if isinstance(file, io.BytesIO) else file.fileno()
    return soundfile.SoundFile(source, closefd=False)


def read_pcm(
    path: str | Path,
    samples: int | None = None,
    max_s: float = MAX_RECORDING_S,
    start: int = WHOLE,
    content: bytes | None = None,
) -> np.ndarray:
    """Read a file as mono at 22,050 Hz, int16 [samples]: averaged, resampled by soxr and clipped.

    With `start`, the `samples` from there on are read, counted at 22,050 Hz; nothing else of the
    file is decoded but what the resampling filter sees. Raises DataError if the file cannot be
    read, contains a NaN or an infinity there, or does not have the expected length `samples`, from
    which it may differ by one sample after resampling. Nothing after `max_s` is decoded. `content`
    is that of the file, if it was read already.
    """
    mono, rate_hz, skipped = read_sound(path, samples, max_s, start, content)
    if not np.isfinite(mono).all():
        raise DataError(f"{path} contains samples that are not finite")
    if rate_hz != SAMPLE_RATE_HZ and len(mono):
        mono = soxr.resample(mono, rate_hz, SAMPLE_RATE_HZ)
    pcm = to_pcm(mono)
    if samples is None:
        return pcm
    if start != WHOLE:
        pcm = pcm[skipped : skipped + samples]
    _check_length(path, len(pcm), samples, tolerance=int(rate_hz != SAMPLE_RATE_HZ))
    return np.pad(pcm[:samples], (0, samples - min(len(pcm), samples)))


def read_sound(
    path: str | Path,
    samples: int | None = None,
    max_s: float = MAX_RECORDING_S,
    start: int = WHOLE,
    content: bytes | None = None,
) -> tuple[np.ndarray, int, int]:
    """Read a file as `read_pcm`, but neither resampled nor checked: float32, and its rate.

    Of a stretch, with what the resampling filter sees; the last value is where it begins after
    resampling.
    """
    try:
        with open_audio(path, content) as file:
            if start == WHOLE:
                return *_read(file, path, samples, max_s), 0
            assert samples is not None
            return _read_stretch(file, start, samples)
    except soundfile.LibsndfileError as error:
        raise DataError(f"{path} cannot be read: {error.error_string.rstrip('.')}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _read(
    file: BinaryIO, path: str | Path, samples: int | None, max_s: float
) -> tuple[np.ndarray, int]:
    """Return the mean of the channels, float32, not finite where one is not, and the rate."""
    with open_sound(file) as sound:
        # Another length than expected may be more than the memory takes.
        if samples is not None:
            promised = int(resampled_length(sound.frames, sound.samplerate))
            _check_length(path, promised, samples, tolerance=1)
        frames = min(sound.frames, round(max_s * sound.samplerate))
        return _mean_of_channels(sound, frames), sound.samplerate


def _read_stretch(file: BinaryIO, start: int, samples: int) -> tuple[np.ndarray, int, int]:
    """Return at least a stretch of a file, its rate, and where the stretch begins after resampling.

    The first sample read is one that falls on a sample at 22,050 Hz.
    """
    with open_sound(file) as sound:
        rate_hz = sound.samplerate
        divisor = math.gcd(rate_hz, SAMPLE_RATE_HZ)
        margin_s = FILTER_S if rate_hz != SAMPLE_RATE_HZ else 0.0
        first = max(start - int(margin_s * SAMPLE_RATE_HZ), 0)
        first -= first % (SAMPLE_RATE_HZ // divisor)
        begin = first * rate_hz // SAMPLE_RATE_HZ
        end = math.ceil((start + samples) * rate_hz / SAMPLE_RATE_HZ + margin_s * rate_hz)
        frames = min(end, sound.frames) - begin
        if frames <= 0:
            return np.zeros(0, np.float32), rate_hz, 0
        sound.seek(begin)
        return _mean_of_channels(sound, frames), rate_hz, start - first


def _mean_of_channels(sound: soundfile.SoundFile, frames: int) -> np.ndarray:
    mono = np.empty(frames, np.float32)
    read = 0
    for block in sound.blocks(BLOCK_SAMPLES, frames=frames, dtype="float32", always_2d=True):
        mono[read : read + len(block)] = block.mean(axis=1)
        read += len(block)
    return mono[:read]


def _check_length(path: str | Path, found: int, expected: int, tolerance: int) -> None:
    if abs(found - expected) > tolerance:
        raise DataError(
            f"{path} has {found} samples at {SAMPLE_RATE_HZ} Hz, but had {expected} when the"
            " manifest was made"
        )


def to_pcm(wave: np.ndarray) -> np.ndarray:
    """Round a wave in [-1, 1] to 16 bits, int16 [samples]; samples beyond the range are clipped."""
    return np.clip(np.rint(wave * 32768.0), -32768, 32767).astype(np.int16)


def speech_span(wave: np.ndarray, below_db: float) -> tuple[int, int]:
    """Return first sample and end of a wave without the silence at its ends.

    Silent are pieces of END_SAMPLES whose power is `below_db` below that of the loudest, but for
    KEPT_ENDS next to what is heard. So what was cut once stays as it is, and so does a silent wave.
    """
    pieces = np.pad(wave.astype(np.float64), (0, -len(wave) % END_SAMPLES))
    power = np.square(pieces).reshape(-1, END_SAMPLES).mean(axis=1)
    heard = np.flatnonzero(power > power.max(initial=0.0) * 10.0 ** (-below_db / 10.0))
    if not len(heard):
        return 0, len(wave)
    first = max(int(heard[0]) - KEPT_ENDS, 0) * END_SAMPLES
    return first, min((int(heard[-1]) + 1 + KEPT_ENDS) * END_SAMPLES, len(wave))


def read_wave(
    path: str | Path, samples: int | None = None, max_s: float = MAX_RECORDING_S, start: int = WHOLE
) -> np.ndarray:
    """Read a file as by `read_pcm`, but as float32 [samples] in [-1, 1]."""
    return read_pcm(path, samples, max_s, start).astype(np.float32) / 32768.0


def check_recording(path: Path, role: str, min_s: float, advice: str) -> None:
    """Check the header of a recording, and that floating-point samples are finite.

    Raises DataError if it is missing, unreadable, too short or too long; its message has the `role`
    of the recording, and ends with the advice. RECORDING and REFERENCE have both.
    """
    try:
        header = read_header(str(path))
        length_s = header.samples / header.rate_hz
        if length_s < min_s:
            raise DataError(f"the {role} {path} has {length_s:.2f} s. {advice}")
        if length_s > MAX_RECORDING_S:
            limit = f"may have {MAX_RECORDING_S / 3600:g} h. Split it."
            raise DataError(f"the {role} {path} has {length_s / 3600:,.1f} h, but {limit}")
        if header.floating:
            check_finite(str(path))
    except UnusableAudio as error:
        fault = str(error).rstrip(".")
        raise DataError(f"the {role} {path} cannot be used: {fault}. {advice}") from error


def read_recording(
    path: Path,
    role: str,
    min_s: float,
    advice: str,
    max_samples: int = int(MAX_RECORDING_S * SAMPLE_RATE_HZ),
    trim: float | None = None,
) -> np.ndarray:
    """Read the beginning of a recording as float32 [samples] in [-1, 1] at 22,050 Hz.

    `trim` cuts the silence off its ends, as `speech_span`, up to TRIMMED_S of it. Raises DataError
    as `check_recording` does, or if the samples cannot be read.
    """
    check_recording(path, role, min_s, advice)
    margin_s = FILTER_S if trim is None else TRIMMED_S
    try:
        wave = read_wave(path, max_s=max_samples / SAMPLE_RATE_HZ + margin_s)
    except DataError as error:
        raise DataError(f"{error}. {advice}") from error
    if trim is not None:
        wave = wave[slice(*speech_span(wave, trim))]
    return wave[:max_samples]


def write_wav(path: Path, wave: np.ndarray) -> None:
    """Write a wave, float32 [samples] in [-1, 1], as 16-bit WAV; an OSError names the file."""
    # soundfile would report any refusal of the disk as "System error".
    content = io.BytesIO()
    soundfile.write(content, wave, SAMPLE_RATE_HZ, format="WAV", subtype="PCM_16")
    with attach_path_to_errors(path):
        path.write_bytes(content.getvalue())


class BlockwiseFile(soundfile.SoundFile):
    """A sound file that is written in blocks."""

    def write(self, data: np.ndarray) -> None:
        # libvorbis puts a whole write on the stack: one of 97 s crashes a process whose stack has 8
        # MiB.
        for first in range(0, len(data), BLOCK_SAMPLES):
            super().write(data[first : first + BLOCK_SAMPLES])


def wav_header(data_bytes: int = STREAMED_BYTES) -> bytes:
    """Return the header of a mono 16-bit WAV (Multimedia Data Specifications 1.0)."""
    # The fields have 32 bits: beyond 4 GiB there is no length.
    data_bytes = min(data_bytes, STREAMED_BYTES)
    riff_bytes = min(data_bytes + HEADER_BYTES - 8, STREAMED_BYTES)
    form = b"fmt ", len(NATIVE_FORMAT), NATIVE_FORMAT
    return struct.pack("<4sI4s4sI16s4sI", b"RIFF", riff_bytes, b"WAVE", *form, b"data", data_bytes)
