"""Damage of files: flipped bits, NULs after a power cut, cut, empty, missing or other files."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

MAX_BITS = 8
GARBAGE_BYTES = 64


def flip_bits(path: Path, source: random.Random) -> str:
    content = bytearray(path.read_bytes())
    count = source.randint(1, MAX_BITS) if content else 0
    for place in [source.randrange(len(content) * 8) for _ in range(count)]:
        content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    return f"{count} bits flipped"


def zero(path: Path, source: random.Random) -> str:
    return f"NULs {_overwrite(path, source, bytes)}"


def garble(path: Path, source: random.Random) -> str:
    return f"random bytes {_overwrite(path, source, source.randbytes)}"


def _overwrite(path: Path, source: random.Random, make: Callable[[int], bytes]) -> str:
    content = path.read_bytes()
    begin = source.randrange(len(content) + 1)
    end = min(len(content), begin + source.randint(1, max(1, len(content) // 2)))
    path.write_bytes(content[:begin] + make(end - begin) + content[end:])
    return f"from byte {begin} to {end}"


def truncate(path: Path, source: random.Random) -> str:
    content = path.read_bytes()
    size = source.randrange(len(content) + 1)
    path.write_bytes(content[:size])
    return f"cut after {size} of {len(content)} bytes"


def empty(path: Path, source: random.Random) -> str:
    path.write_bytes(b"")
    return "empty"


def remove(path: Path, source: random.Random) -> str:
    path.unlink()
    return "missing"


def append(path: Path, source: random.Random) -> str:
    path.write_bytes(path.read_bytes() + source.randbytes(GARBAGE_BYTES))
    return f"{GARBAGE_BYTES} random bytes behind its end"


def double(path: Path, source: random.Random) -> str:
    path.write_bytes(path.read_bytes() * 2)
    return "its content twice"


def make_folder(path: Path, source: random.Random) -> str:
    path.unlink()
    path.mkdir()
    return "a folder in its place"


def swap(path: Path, source: random.Random) -> str:
    files = sorted(other for other in path.parents[1].rglob("*") if other.is_file())
    other = source.choice([other for other in files if other.suffix != path.suffix])
    shutil.copyfile(other, path)
    return f"the content of {other.name}"


DAMAGES = (flip_bits, flip_bits, zero, zero, garble, truncate, truncate)
DAMAGES += (empty, remove, append, double, make_folder, swap)


def damage(path: Path, source: random.Random) -> str:
    """Damage a file in one of these ways; return how."""
    return f"{path.parent.name}/{path.name}: {source.choice(DAMAGES)(path, source)}"
