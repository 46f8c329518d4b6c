"""The form of an audio file: its header, and whether the file keeps what its header promises.

This module parses the headers of plain WAV files itself, since a corpus may have a million of them;
libsndfile reads all others, after ffmpeg if need be.
"""

import io
import os
import re
import stat
import struct
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import soundfile

from myxtts.audio.ffmpeg import libsndfile_path
from myxtts.audio.format import sample_rate_hz
from myxtts.base.errors import DataError
from myxtts.base.files import LFS_POINTER
from myxtts.base.members import member_of, read_member

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
# Samples of these types may be on another scale.
WIDE = ("FLOAT", "DOUBLE", "PCM_32")


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
    return replace(header, native=header.native and member is None)


def _native_header(file: BinaryIO, size: int) -> AudioHeader | None:
    """The header of a WAV file that TensorFlow and libsndfile decode alike, or None."""
    chunks = _chunks(file)
    lengths = [promised for name, _, promised, _ in chunks if name == b"data"]
    # A length of 16 or 18 excludes the extensible format. decode_wav knows neither padding bytes
    # nor bytes after the last chunk.
    is_native = (
        len(lengths) == 1
        and (chunks[0][0], chunks[0][3]) == (b"fmt ", _native_format(sample_rate_hz()))
        and chunks[0][2] in (16, 18)
        and all(name in PLAIN_CHUNKS and promised % 2 == 0 for name, _, promised, _ in chunks)
        and sum(chunks[-1][1:3]) == size
    )
    if not is_native:
        return None
    return AudioHeader(lengths[0] // 2, sample_rate_hz(), True, False)


def _native_format(rate_hz: int) -> bytes:
    """Return what needs no conversion: PCM, mono, rate, bytes a second, a frame, bits a sample."""
    return struct.pack("<HHIIHH", 1, 1, rate_hz, 2 * rate_hz, 2, 16)


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


def wav_header(data_bytes: int = STREAMED_BYTES, rate_hz: int | None = None) -> bytes:
    """Return the header of a mono 16-bit WAV (Multimedia Data Specifications 1.0).

    The rate is by default that of this process.
    """
    # The fields have 32 bits: beyond 4 GiB there is no length.
    data_bytes = min(data_bytes, STREAMED_BYTES)
    riff_bytes = min(data_bytes + HEADER_BYTES - 8, STREAMED_BYTES)
    riff = struct.pack("<4sI4s", b"RIFF", riff_bytes, b"WAVE")
    form = struct.pack("<4sI16s", b"fmt ", 16, _native_format(rate_hz or sample_rate_hz()))
    return riff + form + struct.pack("<4sI", b"data", data_bytes)
