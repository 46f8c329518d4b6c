"""Audio files of a corpus and single recordings: headers, and PCM at one rate. No TensorFlow.

This module parses the headers of plain WAV files itself, since a corpus may have a million of them;
libsndfile reads all others, after ffmpeg if need be. What `read_header` and `check_finite` accept
can be read by all readers.
"""

import io
import logging
import math
import os
import re
import stat
import struct
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import soundfile
import soxr

from myxtts.audio.ffmpeg import libsndfile_path
from myxtts.audio.format import sample_rate_hz
from myxtts.base.errors import DataError
from myxtts.base.files import LFS_POINTER, attach_path_to_errors
from myxtts.base.members import member_of, read_member

# Needs no conversion: PCM, mono, rate, bytes per second, bytes per frame, bits per sample.
# A program that writes to a pipe does not know the data length, and writes this instead, as FFmpeg
# does: readers go on until the end of the stream.
STREAMED_BYTES = 0xFFFFFFFF
HEADER_BYTES = 44
# Programs write 2e9, 0x7FFFF000, 0x7FFFFFFF and the like instead of a length that they do not know.
UNKNOWN_BYTES = 2_000_000_000
# A length may count the header, or a sample that was not written.
EXCESS_BYTES = 128
# Real files have fewer than ten; limits the reads of a damaged one.
MAX_CHUNKS = 64
# TensorFlow and libsndfile skip these alike.
PLAIN_CHUNKS = (b"fmt ", b"data", b"LIST", b"fact", b"JUNK", b"PAD ", b"id3 ", b"cue ", b"smpl")
# Lengths in the log of libsndfile that contradict the file.
LENGTHS = re.compile(r"(?:data|Data Size|SSND|riff|Riff size) *: (\d+) \(should be (\d+)\)")
# The first frame of an MP3 file, as Xing and LAME write it: flags, number of frames, bytes.
XING = re.compile(rb"\xff[\xe0-\xff].{2,4}?\0+(?:Xing|Info)\0\0\0(.)(.{4})(.{4})", re.DOTALL)
MPEG = re.compile(rb"\xff[\xe2-\xff]")
XING_BYTES, HAS_FRAMES, HAS_BYTES = 64, 1, 2
# All streams of an OGG file begin here, and one of LAYOUTS says its length in bytes 4 to 7.
FIRST_PAGES_BYTES = 1024
SCANNED_BYTES = 2**20
# A frame of MP3, and a tag after it.
MAX_REST_BYTES = 1_600
CONTAINERS = (b"RIFF", b"RF64", b"riff", b"FORM", b"caff", b".snd", b"fLaC", b"OggS")
LAYOUTS = (b"WAVE", b"AIFF", b"AIFC")
JOINED = "another recording follows in the same file; split or convert it"
NO_LENGTH = "its header does not say how long it is; install ffmpeg, or convert it"
RATE_LIMITS_HZ = (1_000, 768_000)
# Per channel: all channels of a long recording may not fit into memory.
BLOCK_SAMPLES = 65_536
# A megabyte of FLAC may hold days of silence.
MAX_RECORDING_S = 4 * 3600.0
# Margin of a stretch, more than the resampling filter sees: a cut changes no sample near it.
FILTER_S = 1.0
# Longest silence that is skipped at the start of a reference; people leave less.
TRIMMED_S = 30.0
# Stands for the whole file, where a stretch has its first sample.
WHOLE = -1
# Silence at the ends is cut off in pieces of this length, of which the inner ones are kept.
END_SAMPLES = 512
KEPT_ENDS = 2
# Samples of these types may be on another scale. A peak below MIN_PEAK was divided twice. A peak
# above MAX_PEAK was not divided, if more than the fraction CLICK of the samples is beyond 1.0.
WIDE = ("FLOAT", "DOUBLE", "PCM_32")
MIN_PEAK, MAX_PEAK, CLICK = 1e-3, 4.0, 1e-3
# A channel is heard above this fraction of the loudest one's power; every 7th sample tells it.
SILENT_CHANNEL, EVERY = 1e-3, 7
# Levels at which nothing is heard, and below which speech may come later, which is LATE_DB above.
SILENT, QUIET, LATE_DB = 1e-3, 2e-2, 30.0
log = logging.getLogger(__name__)
_said: set[str] = set()


class RecordingKind(NamedTuple):
    """What a recording is for: its role in messages, and what it must have; `check_recording`."""

    role: str
    min_s: float  # shortest length
    advice: str  # at the end of messages
    heard: bool = False  # whether it must have sound


RECORDING = RecordingKind("recording", 0.1, "Give audio files, each with at least 0.1 s of speech.")
REFERENCE = RecordingKind(
    "reference",
    0.5,
    "Give audio files of the speaker with --reference, each with at least 0.5 s of speech.",
    heard=True,
)


class UnusableAudio(DataError):
    """An audio file that cannot be used: the kind of fault, and the details of this file."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(": ".join(filter(None, (reason, detail))))
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class AudioHeader:
    """Length of one file, in samples per channel, and its format.

    `tf.audio.decode_wav` reads a native file unconverted. Of 32 bits and more (`wide`), samples may
    be on any scale, or not finite: `check_finite`.
    """

    samples: int
    rate_hz: int
    native: bool
    wide: bool


# A plain WAV is read here, in one or two small reads. All else goes to libsndfile, after ffmpeg
# where the name or a missing length asks for it. Whatever fails becomes UnusableAudio with a reason
# that `rejected.csv` can show.
def read_header(path: str) -> AudioHeader:
    """Read a header; raise UnusableAudio if a file is missing, unreadable, truncated or joined."""
    member = member_of(path)
    try:
        # A named pipe would block forever.
        if member is None and not stat.S_ISREG(os.stat(path).st_mode):
            raise UnusableAudio("not a file")
        with io.BytesIO(read_member(member)) if member else open(path, "rb", 0) as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                raise UnusableAudio("empty file")
            file.seek(0)
            start = file.read(12)
            if start == LFS_POINTER[:12]:
                raise UnusableAudio("unreadable", "a pointer of Git LFS; `git lfs pull` gets it")
            is_wav = (start[:4], start[8:]) == (b"RIFF", b"WAVE")
            header = _native_header(file, size) if is_wav else None
            decoded = path if header or member else _decodable(path, file)
            with open(decoded, "rb", 0) if decoded != path else nullcontext(file) as sound:
                header = header or _libsndfile_header(sound)
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
    if member:
        return replace(header, native=False)
    return header


def check_finite(path: str) -> None:
    """Read all samples; raise UnusableAudio at a NaN or infinity, or for another scale."""
    peaks: list[float] = []
    samples = beyond = 0
    try:
        with open_audio(path) as file, open_sound(file) as sound:
            for block in sound.blocks(BLOCK_SAMPLES, dtype="float32", always_2d=True):
                peaks.append(float(np.abs(block).max()))
                if not math.isfinite(peaks[-1]):
                    sample = samples + int(np.isfinite(block).all(axis=1).argmin())
                    raise UnusableAudio("not finite", f"sample {sample}")
                samples += len(block)
                if peaks[-1] > 1.0:
                    beyond += int((np.abs(block) > 1.0).any(axis=1).sum())
    except soundfile.LibsndfileError as error:
        raise UnusableAudio("unreadable", error.error_string) from error
    if fault := _scale_fault(max(peaks, default=0.0), beyond / max(samples, 1)):
        raise UnusableAudio("another scale", fault)
    if beyond > CLICK * samples:
        _say_once("samples beyond 1.0 are clipped", path)


def _scale_fault(peak: float, beyond: float) -> str | None:
    """Return the fault of a wave with this peak and this fraction of samples beyond 1.0."""
    if 0.0 < peak < MIN_PEAK:
        return f"nearly silent, with a peak of {peak:.1e} of 1.0; was it divided twice?"
    if peak <= MAX_PEAK or beyond <= CLICK:
        return None
    bits = next((bits for bits in (16, 24) if peak <= 2 ** (bits - 1)), 32)
    return f"a peak of {peak:,.1f} of 1.0, as of integers of {bits} bits; divide by their range"


def _say_once(what: str, path: str | Path) -> None:
    """Log what holds of a file, and perhaps of others, of which no more is said."""
    if what not in _said:
        _said.add(what)
        log.warning("%-14s %s: %s (said once)", "audio", path, what)


def _native_header(file: BinaryIO, size: int) -> AudioHeader | None:
    """The header of a WAV file that TensorFlow and libsndfile decode alike, or None."""
    chunks = _chunks(file)
    lengths = [promised for name, _, promised, _ in chunks if name == b"data"]
    # A length of 16 or 18 excludes the extensible format. decode_wav knows neither padding bytes
    # nor bytes after the last chunk.
    is_native = (
        len(lengths) == 1
        and (chunks[0][0], chunks[0][3]) == (b"fmt ", _native_format())
        and chunks[0][2] in (16, 18)
        and all(name in PLAIN_CHUNKS and promised % 2 == 0 for name, _, promised, _ in chunks)
        and sum(chunks[-1][1:3]) == size
    )
    if not is_native:
        return None
    return AudioHeader(lengths[0] // 2, sample_rate_hz(), True, False)


def _native_format() -> bytes:
    return struct.pack("<HHIIHH", 1, 1, sample_rate_hz(), 2 * sample_rate_hz(), 2, 16)


def _chunks(file: BinaryIO) -> list[tuple[bytes, int, int, bytes]]:
    """Return name, first byte, promised length and up to 16 bytes of the chunks of a WAV file."""
    chunks = []
    begin = 12
    for _ in range(MAX_CHUNKS):
        file.seek(begin)
        head = file.read(24)
        if len(head) < 8:
            break
        promised = int.from_bytes(head[4:8], "little")
        chunks.append((head[:4], begin + 8, promised, head[8 : 8 + promised]))
        begin += 8 + promised + promised % 2
    return chunks


# libsndfile takes headers at their word, so what it says is checked: is the file two files, does
# its log contradict a length, can the last sample be read? An MP3 without a length is guessed, and
# an OGG ends with a page that says it. Only what passes all of this is a header.
def _libsndfile_header(file: BinaryIO) -> AudioHeader:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = file.read(12)
    # Before libmpg123 sees it, which writes to stderr without a name.
    is_whole = start.startswith((b"ID3", b"\xff")) and _is_whole_mpeg(file, size)
    if start[:4] in CONTAINERS:
        _check_joined(file, start)
    try:
        with open_sound(file) as sound:
            samples = sound.frames
            # libsndfile's length of a FLAC stream is 2^63 - 1.
            if samples / sound.samplerate > 1e9:
                raise UnusableAudio("unreadable", NO_LENGTH)
            for promised, found in LENGTHS.findall(notes := sound.extra_info):
                _check_complete(int(promised), int(found))
            if "lacks an end-of-stream" in notes and "Junk" in notes:
                raise UnusableAudio("truncated", "the last page of the OGG file is not complete")
            # The last page of an OGG file says its length. libvorbis crashes if it seeks with
            # damaged codebooks, and some formats cannot seek.
            last = samples - 1 if sound.format != "OGG" and sound.seekable() else 0
            reaches = not samples or _reaches(sound, last, int(not is_whole))
            # libmpg123 guesses a length, others take 0.
            is_guess = sound.format == "MP3" and not is_whole
            is_wrong = is_guess and (not reaches or size - file.tell() > MAX_REST_BYTES)
            if is_wrong or (not samples and size > FIRST_PAGES_BYTES):
                raise UnusableAudio("unreadable", NO_LENGTH)
            if not reaches:
                reason = "truncated" if sound.format in ("FLAC", "MP3", "OGG") else "unreadable"
                detail = f"not all of the {samples} samples that the header promises can be decoded"
                raise UnusableAudio(reason, detail)
            return AudioHeader(samples, sound.samplerate, False, sound.subtype in WIDE)
    except soundfile.LibsndfileError as error:
        raise UnusableAudio("unreadable", error.error_string) from error


def _check_complete(promised: int, found: int) -> None:
    """Raise UnusableAudio if a length in bytes that somebody meant is more than the file has."""
    if found + EXCESS_BYTES < promised < UNKNOWN_BYTES:
        detail = f"the header promises {promised} bytes of audio, but the file has {found}"
        raise UnusableAudio("truncated", detail)


def _check_joined(file: BinaryIO, start: bytes) -> None:
    """Raise UnusableAudio if a file has two sounds, or begins again: in a WAV after its sound."""
    begin, again = FIRST_PAGES_BYTES, re.escape(start[:6])
    if start[8:] in LAYOUTS:
        again = re.escape(start[:4]) + b".{4}" + start[8:]
    if start[:4] == b"RIFF":
        sounds = [chunk[1:3] for chunk in _chunks(file) if chunk[0] == b"data"]
        if len(sounds) > 1:
            raise UnusableAudio("joined", JOINED)
        for first, promised in sounds:
            begin = first
            if promised < UNKNOWN_BYTES:
                begin += promised
    file.seek(begin)
    before = b""
    while block := file.read(SCANNED_BYTES):
        if re.search(again, before + block, re.DOTALL):
            raise UnusableAudio("joined", JOINED)
        before = block[-len(start) :]


def _first_frame(file: BinaryIO) -> tuple[int, bytes]:
    """Return where the first frame of an MP3 file is, behind its tag, and its first bytes."""
    file.seek(0)
    start, begin = file.read(10), 0
    if start.startswith(b"ID3"):
        begin = 10 + sum(byte << 7 * place for place, byte in enumerate(start[9:5:-1]))
    file.seek(begin)
    return begin, file.read(XING_BYTES)


def _decodable(path: str, file: BinaryIO) -> str:
    """Return what libsndfile can read of a file: ffmpeg decodes an MP3 file that has no length."""
    _, frame = _first_frame(file)
    return libsndfile_path(path, bool(MPEG.match(frame) and not XING.match(frame)))


def _is_whole_mpeg(file: BinaryIO, size: int) -> bool:
    """Whether an MP3 file says its length, and has it; raise UnusableAudio if it has another."""
    begin, frame = _first_frame(file)
    found = XING.match(frame)
    if found is None or not found[1][0] & HAS_BYTES:
        return False
    promised = int.from_bytes(found[3] if found[1][0] & HAS_FRAMES else found[2], "big")
    _check_complete(promised - promised // 100, size - begin)
    file.seek(begin + promised)
    if re.match(rb"ID3|" + MPEG.pattern, file.read(3)):
        raise UnusableAudio("joined", JOINED)
    return begin + promised <= size


def _reaches(sound: soundfile.SoundFile, position: int, samples: int) -> bool:
    """Whether samples can be read there: the header of a truncated FLAC or MP3 file is intact."""
    try:
        # An MP3 file whose header was changed ends at another position.
        if position and sound.seek(position) != position:
            return False
        return len(sound.read(samples)) == samples
    except soundfile.LibsndfileError:
        return False


def resampled_length(samples, rate_hz):
    """Return the resampled length, rounded half up as by soxr; for integers or int64 arrays."""
    return (2 * samples * sample_rate_hz() + rate_hz) // (2 * rate_hz)


def open_audio(path: str | Path, content: bytes | None = None) -> BinaryIO:
    """Open what libsndfile reads of a file or a member of a shard, whose `content` may be given."""
    if content is None and (member := member_of(str(path))):
        content = read_member(member)
    if content is not None:
        return io.BytesIO(content)
    # The errors of `open` are clearer than libsndfile's "System error".
    with open(path, "rb", 0) as file:
        # libsndfile goes on where the descriptor is.
        return open(_decodable(str(path), file), "rb", 0)


def open_sound(file: BinaryIO) -> soundfile.SoundFile:
    """Open what `open_audio` returned; a WAV file that was not closed is read to its end."""
    file.seek(0)
    source = file if isinstance(file, io.BytesIO) else file.fileno()
    sound = soundfile.SoundFile(source, closefd=False)
    if sound.frames or not sound.format.startswith("WAV"):
        return sound
    chunks = _chunks(file)
    for name, begin, promised, _ in chunks:
        # A LIST after no sound leads to the end, but sound does not.
        if name == b"data" and not promised and sum(chunks[-1][1:3]) != file.seek(0, os.SEEK_END):
            file.seek(0)
            content = bytearray(file.read())
            content[begin - 4 : begin] = STREAMED_BYTES.to_bytes(4, "little")
            return soundfile.SoundFile(io.BytesIO(content))
    return sound


def read_pcm(
    path: str | Path,
    samples: int | None = None,
    max_s: float = MAX_RECORDING_S,
    start: int = WHOLE,
    content: bytes | None = None,
) -> np.ndarray:
    """Read a file as mono, int16 [samples]: averaged, resampled by soxr and clipped.

    With `start`, the `samples` from there on are read, as they come out; nothing else of the
    file is decoded but what the resampling filter sees. Raises DataError if the file cannot be
    read, contains a NaN or an infinity there, or does not have the expected length `samples`, from
    which it may differ by one sample after resampling. Nothing after `max_s` is decoded. `content`
    has the bytes of the file, if it was read already.
    """
    mono, rate_hz, skipped = read_sound(path, samples, max_s, start, content)
    if not np.isfinite(mono).all():
        raise DataError(f"{path} contains samples that are not finite")
    if rate_hz != sample_rate_hz() and len(mono):
        mono = soxr.resample(mono, rate_hz, sample_rate_hz())
    pcm = to_pcm(mono)
    if samples is None:
        return pcm
    if start != WHOLE:
        pcm = pcm[skipped : skipped + samples]
    _check_length(path, len(pcm), samples, tolerance=int(rate_hz != sample_rate_hz()))
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
    first, begin = 0, 0
    try:
        with open_audio(path, content) as file, open_sound(file) as sound:
            rate_hz = sound.samplerate
            end = round(max_s * rate_hz)
            if start != WHOLE:
                assert samples is not None
                margin_s = FILTER_S if rate_hz != sample_rate_hz() else 0.0
                first = max(start - int(margin_s * sample_rate_hz()), 0)
                # The first sample read is one that falls on a sample of the result.
                first -= first % (sample_rate_hz() // math.gcd(rate_hz, sample_rate_hz()))
                begin = first * rate_hz // sample_rate_hz()
                end = math.ceil((start + samples) * rate_hz / sample_rate_hz() + margin_s * rate_hz)
            elif samples is not None:
                # Another length than expected may be more than the memory takes.
                promised = int(resampled_length(sound.frames, rate_hz))
                _check_length(path, promised, samples, tolerance=1)
            end = min(end, sound.frames)
            mono = _mean_of_channels(sound, min(begin, end), end, path)
    except soundfile.LibsndfileError as error:
        raise DataError(f"{path} cannot be read: {error.error_string.rstrip('.')}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    # A stretch is not checked, since a click may fill it.
    if start == WHOLE and sound.subtype in WIDE:
        peak = float(np.abs(mono).max(initial=0.0))
        if peak > MAX_PEAK and (fault := _scale_fault(peak, (np.abs(mono) > 1.0).mean())):
            raise DataError(f"{path} has another scale: {fault}")
    return mono, rate_hz, max(start, 0) - first


# All channels are read once, for their mean and their covariance. Silent channels would halve the
# level, and a channel that is another one inverted would cancel it. If either is found, the stretch
# is read again with the channels that are left.
@np.errstate(invalid="ignore")
def _mean_of_channels(
    sound: soundfile.SoundFile, begin: int, end: int, path: str | Path
) -> np.ndarray:
    """Return the mean of the channels that are heard, or one of them if others cancel it."""
    mono, covariance = _mean_and_covariance(sound, begin, end, slice(None))
    power = covariance.diagonal()
    heard = power > SILENT_CHANNEL * power.max()
    # The sum of n unrelated channels has n times their power.
    if 2 * covariance[heard][:, heard].sum() < heard.sum() * power.max():
        # The first of those that are nearly as loud: the same channel in each stretch.
        heard = np.arange(len(power)) == (power > power.max() / 2).argmax()
    # None is of one channel, and if all are silent, or a sample is not finite.
    if heard.any() and not heard.all():
        _say_once("channels that are silent, or cancel another one, are left out", path)
        mono, _ = _mean_and_covariance(sound, begin, end, heard)
    return mono


def _mean_and_covariance(
    sound: soundfile.SoundFile, begin: int, end: int, channels: np.ndarray | slice
) -> tuple[np.ndarray, np.ndarray]:
    """Read the mean of some channels, float32 [samples], and the covariance of all of several."""
    skipped = 0
    if not sound.seekable():
        skipped = begin
    elif sound.tell() != begin:
        sound.seek(begin)
    frames = end - begin + skipped
    mono, offset = np.empty(frames, np.float32), np.zeros(0)
    read = count = 0
    sums, products = np.zeros(sound.channels), np.zeros((sound.channels, sound.channels))
    for block in sound.blocks(BLOCK_SAMPLES, frames=frames, dtype="float32", always_2d=True):
        mono[read : read + len(block)] = block[:, channels].mean(axis=1)
        read += len(block)
        if sound.channels > 1:
            # As many tell. BLAS is fast, but its float32 sums are exact only without an offset.
            if not len(offset):
                offset = block[0]
            some = block[::EVERY] - offset
            count += len(some)
            sums += np.ones(len(some), np.float32) @ some
            products += some.T @ some
    return mono[skipped:read], products * count - np.outer(sums, sums)


def _check_length(path: str | Path, found: int, expected: int, tolerance: int) -> None:
    if abs(found - expected) > tolerance:
        raise DataError(
            f"{path} has {found} samples at {sample_rate_hz()} Hz, but had {expected} when the"
            " manifest was made"
        )


def to_pcm(wave: np.ndarray) -> np.ndarray:
    """Round a wave in [-1, 1] to 16 bits, int16 [samples]; samples beyond the range are clipped."""
    return np.clip(np.rint(wave * 32768.0), -32768, 32767).astype(np.int16)


def speech_span(wave: np.ndarray, below_db: float) -> tuple[int, int]:
    """Return first sample and end of a wave without the silence at its ends.

    Pieces of END_SAMPLES are silent if they are `below_db` below the loudest one. KEPT_ENDS of them
    stay next to the speech, so a wave that was cut once stays as it is, and so does a silent one.
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


def check_recording(path: Path, kind: RecordingKind) -> None:
    """Check the header of a recording, the scale of its samples, and whether something is heard.

    Raises DataError if it is missing, unreadable, too short or too long, of another scale, or, for
    a kind that must be heard, silent where `read_recording` reads it.
    """
    role, min_s, advice, heard = kind
    try:
        header = read_header(str(path))
        length_s = header.samples / header.rate_hz
        if length_s < min_s:
            raise DataError(f"the {role} {path} has {length_s:.2f} s. {advice}")
        if length_s > MAX_RECORDING_S:
            limit = f"may have {MAX_RECORDING_S / 3600:g} h. Split it."
            raise DataError(f"the {role} {path} has {length_s / 3600:,.1f} h, but {limit}")
        if header.wide:
            check_finite(str(path))
    except UnusableAudio as error:
        fault = str(error).rstrip(".")
        raise DataError(f"the {role} {path} cannot be used: {fault}. {advice}") from error
    if heard:
        _check_heard(path, read_wave(path, max_s=TRIMMED_S), role, advice)


def _check_heard(path: Path, wave: np.ndarray, role: str, advice: str) -> None:
    if level(wave) < SILENT:
        seconds = len(wave) / sample_rate_hz()
        raise DataError(f"the {role} {path} has no sound in its first {seconds:.1f} s. {advice}")


def level(wave: np.ndarray) -> float:
    """Return the root mean square of the loudest piece of END_SAMPLES, without its mean."""
    pieces = wave[: len(wave) - len(wave) % END_SAMPLES].reshape(-1, END_SAMPLES)
    return float(pieces.std(axis=1).max(initial=0.0))


def read_recording(
    path: Path, kind: RecordingKind, max_samples: int | None = None, trim: float | None = None
) -> np.ndarray:
    """Read the beginning of a recording as float32 [samples] in [-1, 1], by default of 4 h.

    `trim` cuts the silence off its ends, as `speech_span`, up to TRIMMED_S of it; of a kind that
    must be heard, a beginning without speech is cut off as well. Raises DataError as
    `check_recording` does, or if the samples cannot be read.
    """
    role, _, advice, heard = kind
    # Whether it is heard is decided below, on the samples that are read anyway.
    check_recording(path, kind._replace(heard=False))
    most = max_samples or int(MAX_RECORDING_S * sample_rate_hz())

    def beginning(below_db: float | None) -> np.ndarray:
        margin_s = FILTER_S if below_db is None else TRIMMED_S
        try:
            wave = read_wave(path, max_s=most / sample_rate_hz() + margin_s)
        except DataError as error:
            raise DataError(f"{error}. {advice}") from error
        if below_db is not None:
            first, end = speech_span(wave, below_db)
            wave = wave[first:end]
        return wave[:most]

    wave = beginning(trim)
    if not heard:
        return wave
    if level(wave) < QUIET:
        wave = beginning(LATE_DB)
    _check_heard(path, wave, role, advice)
    if (share := clipped(wave)) > MAX_CLIPPED:
        log.warning("the %s %s is clipped: %.0f %% in flat peaks", role, path, 100 * share)
    return wave


def write_wav(path: Path, wave: np.ndarray) -> None:
    """Write a wave, float32 [samples] in [-1, 1], as 16-bit WAV; an OSError names the file."""
    # soundfile would report any refusal of the disk as "System error".
    content = io.BytesIO()
    soundfile.write(content, wave, sample_rate_hz(), format="WAV", subtype="PCM_16")
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
    riff = struct.pack("<4sI4s", b"RIFF", riff_bytes, b"WAVE")
    form = struct.pack("<4sI16s", b"fmt ", 16, _native_format())
    return riff + form + struct.pack("<4sI", b"data", data_bytes)


# More of the samples in flat peaks is heard.
MAX_CLIPPED = 0.005


def clipped(wave: np.ndarray) -> float:
    count = 0
    for half in (wave, -wave):
        is_peak = half > 0.995 * max(half.max(), 1e-4)
        count += (is_peak[2:] & is_peak[1:-1] & is_peak[:-2]).sum()
    return float(count / len(wave))
