"""Hostile audio files: WAV, FLAC, OGG and MP3 with headers that lie, and files of other formats."""

import io
import random
import struct
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import soundfile

from benchmarks.hostile.bytes_and_files import MAGIC, mutate_bytes, write_odd_file
from benchmarks.hostile.case import Call, Place
from myxtts.config.load import load
from myxtts.data.audio_file import read_pcm
from myxtts.data.audio_header import read_header
from myxtts.data.dataset import load_corpora
from myxtts.data.recording import check_recording, read_recording
from myxtts.errors import DataError
from myxtts.synthesis.reference import check_reference, read_reference

FORMATS = {  # name -> format, subtype, sample rate, channels
    "native.wav": ("WAV", "PCM_16", 22_050, 1),
    "stereo.wav": ("WAV", "PCM_24", 44_100, 2),
    "floats.wav": ("WAV", "FLOAT", 16_000, 1),
    "coded.wav": ("WAV", "MS_ADPCM", 22_050, 1),
    "sound.flac": ("FLAC", "PCM_16", 24_000, 1),
    "stereo.flac": ("FLAC", "PCM_24", 48_000, 2),
    "vorbis.ogg": ("OGG", "VORBIS", 22_050, 1),
    "opus.ogg": ("OGG", "OPUS", 48_000, 1),
    "sound.mp3": ("MP3", "MPEG_LAYER_III", 22_050, 1),
}
OTHERS = (
    "AIFF",
    "AU",
    "CAF",
    "W64",
    "RF64",
    "VOC",
    "NIST",
    "IRCAM",
    "MAT5",
    "PVF",
    "XI",
    "HTK",
    "SVX",
    "PAF",
    "AVR",
)
SECONDS = 0.7
MAX_TRANSCRIBED_S = 60.0
REFERENCE_SAMPLES = 66_150
NUMBERS = (
    0,
    1,
    2,
    7,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFE,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFE,
    0xFFFFFFFF,
)


@cache
def sound_of(name: str) -> bytes:
    container, subtype, rate_hz, channels = FORMATS[name]
    wave = np.random.default_rng(0).normal(0, 0.1, (round(SECONDS * rate_hz), channels))
    content = io.BytesIO()
    soundfile.write(content, wave, rate_hz, format=container, subtype=subtype)
    data = content.getvalue()
    return (
        with_checksums(data, serial=1) if container == "OGG" else data
    )  # libsndfile's serial number is random


@cache
def _other(container: str) -> bytes:
    content = io.BytesIO()
    soundfile.write(content, np.zeros(5_000), 22_050, format=container)
    return content.getvalue()


def prepare(draw: random.Random, place: Place) -> Call:
    name = draw.choice(tuple(FORMATS))
    data = draw.choice(MUTATIONS[name.rpartition(".")[2]] + GENERAL)(draw, sound_of(name))
    path = place.corpus / (
        name
        if draw.random() < 0.85
        else draw.choice(("x.wav", "x.flac", "x.ogg", "x.mp3", "x.opus"))
    )
    if draw.random() < 0.03:
        write_odd_file(draw, path, place, data)
    else:
        path.write_bytes(data)
    (place.corpus / "good.wav").write_bytes(sound_of("native.wav"))
    (place.corpus / "metadata.csv").write_text(f"path,text\ngood.wav,abc\n{path.name},abc\n")
    return partial(_use, path, place.runs / "run")


def _use(path: Path, folder: Path) -> None:
    """Use a file as a run, a reference and a recording to transcribe; all must succeed or name the
    file in an error.
    """
    errors = []
    uses = [partial(_train_on, folder=folder)]
    if not _leads_outside(path):
        uses += [_imitate, _transcribe]
    for use in uses:
        try:
            use(path)
        except DataError as error:
            errors.append(error)
    if errors:
        raise errors[-1]


def _leads_outside(path: Path) -> bool:
    """Whether a link leads to a file that is not in the corpus: a row must not name it, but a user
    may.
    """
    return path.is_file() and path.resolve().parent != path.parent.resolve()


def _train_on(path: Path, folder: Path) -> None:
    """Load the corpus, and read each usable utterance by the two ways of the pipeline."""
    import tensorflow as tf

    settings = {
        "train_data": str(path.parent),
        "max_rejected": 1.0,
        "validation_fraction": 0.0,
        "max_seconds": 120.0,
    }
    train, _, _ = load_corpora(load(overrides=settings), folder, None)
    manifest = train.manifest
    for path_, samples, native in zip(
        manifest.paths, manifest.samples.tolist(), manifest.native, strict=True
    ):
        pcm = read_pcm(path_, samples)
        if native:
            wave, rate_hz = tf.audio.decode_wav(tf.io.read_file(path_))
            if (
                wave.shape != (samples, 1)
                or rate_hz != 22_050
                or not np.array_equal(wave[:, 0] * 32768, pcm)
            ):
                raise AssertionError("TensorFlow reads another wave than the header promises")


def _imitate(path: Path) -> None:
    """As `myxtts synthesize --reference`."""
    check_reference(path)
    if len(read_reference(path, REFERENCE_SAMPLES)) > REFERENCE_SAMPLES:
        raise AssertionError("the reference is too long")


def _transcribe(path: Path) -> None:
    """As `myxtts transcribe`; of minutes of sound only the header, since to decode them is what is
    asked for.
    """
    requirements = ("recording", 0.1, "Give audio files, each with at least 0.1 s of speech.")
    check_recording(path, *requirements)
    header = read_header(str(path))
    if header.samples <= MAX_TRANSCRIBED_S * header.rate_hz:
        read_recording(path, *requirements)


def _valid(draw: random.Random, data: bytes) -> bytes:
    return data


def _of_other_format(draw: random.Random, data: bytes) -> bytes:
    other = _other(draw.choice(OTHERS))
    return other if draw.random() < 0.3 else mutate_bytes(draw, other)


def _joined(draw: random.Random, data: bytes) -> bytes:
    """The beginning of one file and the end of another."""
    other = sound_of(draw.choice(tuple(FORMATS)))
    return (
        data[: draw.choice((4, 12, 44, len(data) // 2, len(data)))]
        + other[draw.choice((0, 4, 12, 44, len(other) // 2)) :]
    )


def _behind_magic(draw: random.Random, data: bytes) -> bytes:
    return draw.choice(MAGIC) + draw.choice(
        (b"", draw.randbytes(200), data, b"\0" * 10_000, b"\xff" * 10_000)
    )


GENERAL: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    *(mutate_bytes, mutate_bytes, mutate_bytes, _of_other_format, _joined, _behind_magic, _valid),
)


def _wav(draw: random.Random, data: bytes) -> bytes:
    """Chunks that lie, repeat, overlap or are out of order; the rest of the file is as it should
    be.
    """
    chunks = list(_chunks(data))
    for _ in range(draw.choice((1, 1, 2, 3))):
        chunks = draw.choice((_format_lie, _size_lie, _size_lie, _chunk_order, _strange_chunk))(
            draw, chunks
        )
    body = b"".join(
        name + struct.pack("<I", size & 0xFFFFFFFF) + content for name, size, content in chunks
    )
    size = draw.choice((len(body) + 4, len(body) + 4, 0, 0xFFFFFFFF))
    container = draw.choice((b"RIFF",) * 8 + (b"RIFX", b"RF64"))
    return container + struct.pack("<I", size & 0xFFFFFFFF) + b"WAVE" + body


def _chunks(data: bytes):
    begin = 12
    while begin + 8 <= len(data):
        size = int.from_bytes(data[begin + 4 : begin + 8], "little")
        yield data[begin : begin + 4], size, data[begin + 8 : begin + 8 + size + size % 2]
        begin += 8 + size + size % 2


def _format_lie(draw: random.Random, chunks: list) -> list:
    fields = {
        0: "<H",
        2: "<H",
        4: "<I",
        8: "<I",
        12: "<H",
        14: "<H",
    }  # tag, channels, rate, bytes/s, block, bits
    tags = (0, 2, 3, 6, 7, 17, 34, 49, 80, 85, 0x161, 0x674F, 0xF1AC, 0xFFFE, 0xFFFF)
    changed = []
    for name, size, content in chunks:
        if name == b"fmt ":
            content = bytearray(content)
            for offset in draw.sample(tuple(fields), draw.choice((1, 1, 2))):
                value = draw.choice(
                    tags
                    if offset == 0
                    else (*NUMBERS, 3, 8, 24, 32, 64, 96_000, 768_000, 768_001, 999)
                )
                struct.pack_into(
                    fields[offset],
                    content,
                    offset,
                    value & (0xFFFF if fields[offset] == "<H" else 0xFFFFFFFF),
                )
            content = bytes(content)
        changed.append((name, size, content))
    return changed


def _size_lie(draw: random.Random, chunks: list) -> list:
    at = draw.randrange(len(chunks))
    name, size, content = chunks[at]
    lie = draw.choice(
        (
            *NUMBERS,
            size + 1,
            size - 1,
            size + 2,
            size * 2,
            size // 2,
            size - len(content) // 2,
            16,
            18,
            40,
        )
    )
    return [*chunks[:at], (name, lie, content), *chunks[at + 1 :]]


def _chunk_order(draw: random.Random, chunks: list) -> list:
    return draw.choice(
        (
            chunks[::-1],
            chunks * 2,
            chunks + chunks[-1:],
            chunks[:1],
            chunks[1:],
            chunks[:1] * 70 + chunks,
        )
    )


def _strange_chunk(draw: random.Random, chunks: list) -> list:
    names = (
        b"LIST",
        b"fact",
        b"ds64",
        b"id3 ",
        b"cue ",
        b"smpl",
        b"bext",
        b"\0\0\0\0",
        b"data",
        b"fmt ",
        b"JUNK",
        b"PEAK",
        b"acid",
    )
    content = draw.choice(
        (b"", b"\0", draw.randbytes(28), b"\xff" * 64, b"INFOISFT\xff\xff\xff\xff", b"\0" * 100_000)
    )
    chunk = (draw.choice(names), draw.choice((len(content), len(content), *NUMBERS)), content)
    at = draw.randrange(len(chunks) + 1)
    return [*chunks[:at], *[chunk] * draw.choice((1, 1, 100)), *chunks[at:]]


def _flac(draw: random.Random, data: bytes) -> bytes:
    """STREAMINFO and blocks of metadata that lie; no checksum protects them."""
    changed = bytearray(data)
    choice = draw.randrange(4)
    if choice == 0:  # sample rate (20 bits), channels - 1 (3), bits - 1 (5), samples (36)
        rate = draw.choice((0, 1, 999, 48_000, 655_350, 768_001, (1 << 20) - 1))
        samples = draw.choice((0, 1, 15_000, 1 << 31, 1 << 32, (1 << 36) - 1))
        number = (
            rate << 44 | draw.randrange(8) << 41 | draw.choice((3, 7, 15, 23, 31)) << 36 | samples
        )
        changed[18:26] = number.to_bytes(8, "big")
    elif choice == 1:  # least and largest block, least and largest frame
        changed[8:18] = draw.choice(
            (b"\0" * 10, b"\xff" * 10, struct.pack(">HH", 65_535, 16) + b"\0" * 6)
        )
    elif choice == 2:  # a block of metadata in front of the audio
        kind, size = draw.randrange(128), draw.choice((0, 1, 18, 34, 1000, 0xFFFFFF))
        block = (
            bytes([kind])
            + size.to_bytes(3, "big")
            + draw.choice((b"", draw.randbytes(min(size, 1000)), b"\xff" * min(size, 1000)))
        )
        changed[42:42] = block * draw.choice((1, 1, 2000))
    else:
        changed[4] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
    return bytes(changed)


def _ogg(draw: random.Random, data: bytes) -> bytes:
    """Pages and headers that lie, with checksums that are right."""
    changed = bytearray(data)
    pages = [at for at in range(len(data) - 27) if data[at : at + 4] == b"OggS"]
    at = draw.choice(pages)
    choice = draw.randrange(5)
    if choice == 0:  # position of the last sample of a page
        changed[at + 6 : at + 14] = draw.choice(
            (b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f", b"\0" * 5 + b"\1\0\0")
        )
    elif choice == 1:
        changed[at + 5] = draw.randrange(256)  # begins, continues, ends
    elif choice == 2:
        changed[at + 26] = draw.choice((0, 1, 255))  # number of segments
    elif choice == 3:  # the header of Vorbis or Opus: version, channels, rate, sizes
        begin = 28 + draw.choice((7, 8, 9, 10, 11, 12, 16, 18, 24, 28))
        changed[begin : begin + draw.choice((1, 2, 4))] = draw.choice(
            (b"\0", b"\xff", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\1\0\0\0")
        )
    else:
        for _ in range(20):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
    if draw.random() < 0.2:
        del changed[at : at + 500]
    return with_checksums(bytes(changed), serial=1)


def with_checksums(data: bytes, serial: int) -> bytes:
    """Return OGG pages with a serial number and right checksums, as far as there are pages."""
    changed, at = bytearray(data), 0
    while changed[at : at + 4] == b"OggS" and at + 27 <= len(changed):
        segments = changed[at + 26]
        end = at + 27 + segments + sum(changed[at + 27 : at + 27 + segments])
        changed[at + 14 : at + 18] = struct.pack("<I", serial)
        changed[at + 22 : at + 26] = bytes(4)
        changed[at + 22 : at + 26] = struct.pack("<I", _ogg_checksum(bytes(changed[at:end])))
        at = end
    return bytes(changed)


@cache
def _checksum_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte << 24
        for _ in range(8):
            value = (value << 1 ^ 0x04C11DB7) & 0xFFFFFFFF if value & 0x80000000 else value << 1
        table.append(value)
    return tuple(table)


def _ogg_checksum(page: bytes) -> int:
    value, table = 0, _checksum_table()
    for byte in page:
        value = (value << 8 & 0xFFFFFFFF) ^ table[value >> 24 ^ byte]
    return value


def _mp3(draw: random.Random, data: bytes) -> bytes:
    """Tags that promise megabytes, counts of frames that are wrong, headers of other layers and
    rates.
    """
    changed = bytearray(data)
    choice = draw.randrange(4)
    if choice == 0:
        tag = (
            b"ID3"
            + bytes([draw.choice((2, 3, 4, 255)), 0, draw.choice((0, 0x40, 0xF0))])
            + draw.choice((b"\x7f" * 4, b"\0" * 4, b"\xff" * 4, b"\0\0\1\0"))
        )
        return (
            tag
            + draw.choice(
                (b"", b"TXXX\x7f\xff\xff\xff\0\0", b"APIC\0\0\0\1\0\0", draw.randbytes(128))
            )
            * 3
            + data
        )
    frames = [
        at for at in range(len(data) - 4) if data[at] == 0xFF and data[at + 1] & 0xE0 == 0xE0
    ][:50]
    at = draw.choice(frames or [0])
    if choice == 1 and (xing := max(data.find(b"Xing"), data.find(b"Info"))) >= 0:
        changed[xing + 4 : xing + 16] = (
            b"\0\0\0\x0f"
            + struct.pack(">I", draw.choice(NUMBERS))
            + struct.pack(">I", draw.choice(NUMBERS))
        )
    elif choice == 2:
        changed[at + 1 : at + 4] = bytes(
            [0xE0 | draw.randrange(32), draw.randrange(256), draw.randrange(256)]
        )
    else:
        for at in frames:
            changed[at + 2] = draw.choice((changed[at + 2], draw.randrange(256)))
    return bytes(changed)


def _bomb(draw: random.Random, data: bytes) -> bytes:
    """Silence that takes a thousand times its file."""
    content = io.BytesIO()
    soundfile.write(
        content,
        np.zeros(draw.choice((2_000_000, 20_000_000)), np.int16),
        draw.choice((1_000, 8_000, 192_000)),
        format="FLAC",
    )
    return content.getvalue()


MUTATIONS = {
    "wav": (_wav,) * 6,
    "flac": (_flac, _flac, _flac, _bomb),
    "ogg": (_ogg,) * 4,
    "mp3": (_mp3,) * 4,
}
