"""Mutations that all kinds share: of bytes, of texts, and of what a file is."""

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

from benchmarks.hostile.case import Place

MAGIC = (
    *(
        b"",
        b"RIFF",
        b"RIFX",
        b"RF64",
        b"riff",
        b"fLaC",
        b"OggS",
        b"ID3\x04\x00\x00\x00\x00\x0f\x7f",
        b"\xff\xfb\x90\x64",
    ),
    *(
        b"FORM\x00\x00\x10\x00AIFF",
        b"FORM\x00\x00\x10\x00AIFC",
        b"FORM\x00\x00\x10\x008SVX",
        b".snd\x00\x00\x00\x18",
    ),
    *(
        b"caff\x00\x01\x00\x00",
        b"Creative Voice File\x1a",
        b"NIST_1A\n   1024\n",
        b"Extended Instrument: ",
        b" paf",
    ),
    *(
        b"\x64\xa3\x01\x00",
        b"MATLAB 5.0 MAT-file",
        b"PVF1\n",
        b"2BIT",
        b"MThd",
        b"\x7fELF",
        b"MZ",
        b"\x89PNG\r\n\x1a\n",
    ),
    *(
        b"\x1f\x8b\x08\x00",
        b"PK\x03\x04",
        b"%PDF-1.7",
        b"<html>",
        b"\x93NUMPY\x01\x00",
        b"\x80\x04\x95",
        b"{",
        b"[",
    ),
)


def mutate_bytes(draw: random.Random, data: bytes) -> bytes:
    """Return bytes with one to three faults."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        data = draw.choice(BYTE_FAULTS)(draw, data)
    return data


def _truncated(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data) + 1)]


def _flipped(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    end = draw.choice((len(data), min(len(data), 128)))  # everywhere, or in the header alone
    for _ in range(draw.choice((1, 2, 8, 64)) if end else 0):
        changed[draw.randrange(end)] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _extreme(draw: random.Random, data: bytes) -> bytes:
    """A number of 1 to 8 bytes becomes extreme."""
    size, at = draw.choice((1, 2, 4, 8)), draw.randrange(max(min(len(data), 200), 1))
    value = draw.choice(
        (
            b"\0" * size,
            b"\xff" * size,
            b"\x7f" + b"\xff" * (size - 1),
            b"\xff" * (size - 1) + b"\x7f",
        )
    )
    return data[:at] + value + data[at + size :]


def _repeated(draw: random.Random, data: bytes) -> bytes:
    at, size = draw.randrange(len(data) + 1), draw.choice((1, 4, 16, 64, 4096))
    return data[:at] + data[at : at + size] * draw.choice((2, 3, 50)) + data[at + size :]


def _removed(draw: random.Random, data: bytes) -> bytes:
    at, size = draw.randrange(len(data) + 1), draw.choice((1, 2, 4, 64, 4096))
    return data[:at] + data[at + size :]


def _inserted(draw: random.Random, data: bytes) -> bytes:
    at = draw.choice((0, draw.randrange(len(data) + 1), len(data)))
    return data[:at] + draw.randbytes(draw.choice((1, 2, 4, 64, 4096))) + data[at:]


def _magic(draw: random.Random, data: bytes) -> bytes:
    magic = draw.choice(MAGIC)
    return magic + data[draw.choice((0, len(magic))) :]


def _noise(draw: random.Random, data: bytes) -> bytes:
    return draw.choice(
        (b"", draw.randbytes(draw.choice((1, 12, 44, 5000))), b"\0" * draw.choice((1, 44, 100_000)))
    )


BYTE_FAULTS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    *(
        _truncated,
        _flipped,
        _flipped,
        _flipped,
        _extreme,
        _extreme,
        _repeated,
        _removed,
        _inserted,
        _magic,
        _noise,
    ),
)


def write_odd_file(
    draw: random.Random, path: Path, place: Place, content: bytes, named: bool = False
) -> str:
    """Make something at `path` that is no plain file with this content; return what it is.

    Args:
        named: the program looks for a file of this name, so a link at its place is followed like a
            path that the user gives: whoever keeps the audio on another disk has such links. What a
            table names must be in its folder.
    """
    what = draw.choice([what for what in ODD_FILES if not (named and what in LINKS_OUTSIDE)])
    ODD_FILES[what](draw, path, place, content)
    return what


def _loop(draw: random.Random, path: Path, place: Place, content: bytes) -> None:
    other = path.with_name(f"loop-{path.name}")
    path.symlink_to(other)
    other.symlink_to(path)


def _link_outside(draw: random.Random, path: Path, place: Place, content: bytes) -> None:
    secret = place.outside / f"secret{path.suffix}"
    secret.write_bytes(content)
    path.symlink_to(draw.choice((str(secret), os.path.relpath(secret, path.parent))))


def _sparse(draw: random.Random, path: Path, place: Place, content: bytes) -> None:
    path.write_bytes(content)
    os.truncate(path, draw.choice((1 << 20, 1 << 22, 1 << 24, 1 << 31, 1 << 40)))


ODD_FILES: dict[str, Callable[[random.Random, Path, Place, bytes], object]] = {
    "fifo": lambda draw, path, place, content: os.mkfifo(path),
    "named device": lambda draw, path, place, content: (
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
        if os.geteuid() == 0
        else os.mkfifo(path)
    ),
    "device": lambda draw, path, place, content: path.symlink_to(
        draw.choice(
            ("/dev/zero", "/dev/full", "/dev/tty", "/dev/random", "/dev/stdin", "/proc/self/mem")
        )
    ),
    "folder": lambda draw, path, place, content: path.mkdir(),
    "loop": _loop,
    "link to itself": lambda draw, path, place, content: path.symlink_to(path),
    "link outside": _link_outside,
    "link to a password file": lambda draw, path, place, content: path.symlink_to("/etc/passwd"),
    "link to nothing": lambda draw, path, place, content: path.symlink_to("nothing"),
    "missing": lambda draw, path, place, content: None,
    "sparse": _sparse,
    "empty": lambda draw, path, place, content: path.write_bytes(b""),
}

LINKS_OUTSIDE = ("link outside", "link to a password file", "device")


def encoded(draw: random.Random, text: str) -> bytes:
    """Return a text in an encoding that a file may have, most often UTF-8 without faults, so that
    more is read.
    """
    others = ("utf-8-sig", "utf-16", "utf-16-be", "utf-32", "latin-1", "cp1251", "gb18030")
    encoding = "utf-8" if draw.random() < 0.85 else draw.choice(others)
    if draw.random() < 0.9:
        text = text.replace("\0", "")
    has_surrogates = encoding.startswith("utf") and draw.random() < 0.1
    data = text.encode(encoding, errors="surrogatepass" if has_surrogates else "replace")
    return data if draw.random() < 0.9 else mutate_bytes(draw, data)
