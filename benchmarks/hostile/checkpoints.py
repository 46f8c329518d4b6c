"""Hostile checkpoints: archives and state.json that are damaged, huge, of other types, or written
to be dangerous.
"""

import io
import json
import os
import pickle
import random
import struct
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.hostile.bytes_and_files import mutate_bytes, write_odd_file
from benchmarks.hostile.case import Call, Place
from myxtts.audio.format import AUDIO_FORMAT
from myxtts.config.schema import Config
from myxtts.synthesis.speech_file import check_inputs
from myxtts.training.checkpoint_files import (
    FORMAT,
    checkpoint_of,
    further_groups,
    latest,
    read_arrays,
    read_best,
    read_metadata,
    write_checkpoint,
)
from myxtts.training.observation import observations_of
from myxtts.training.select_checkpoint import (
    audio_format_of,
    check_task,
    select_checkpoint,
    settings_of,
    vocabulary_of,
    weights_file,
)

ARRAYS: dict[str, np.ndarray] = {
    "embedding/weights": np.arange(12, dtype=np.float32).reshape(3, 4),
    "dense/bias": np.ones(4, np.float32),
    "optimizer/iteration": np.array(7, np.int64),
}
GROUPS = ("model", "averages", "optimizer")
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        1,
        0.5,
        1e308,
        float("nan"),
        float("inf"),
        2**31,
        2**53 + 1,
        2**64,
        10**400,
        "",
        "x",
        "\ud800",
        "\x1b[2J",
    ),
    *(
        "x" * 100_000,
        [],
        [[]],
        [None],
        [1, 2, 3],
        ["a", "a"],
        [""],
        {},
        {"": {}},
        {"a": [{}]},
        [1, [2, 3]],
        [[0, 1], [2]],
    ),
    *(
        "../../etc/passwd",
        "/etc/passwd",
        [0, 0, [[1, 2]]],
        [0, 0, [[0, 0]]],
        [-1, 0, []],
        [5, 0.1],
        [5, "a"],
        list(range(1000)),
    ),
)
MAX_BYTES = 1 << 23


@cache
def _metadata(task: str) -> dict[str, Any]:
    settings = Config.model_validate({"model": {"task": task, "model_size": "tiny"}}).model_dump(
        mode="json"
    )
    return {
        **{
            "step": 8,
            "position": [1, 2, [[1, 3]]],
            "replicas": 1,
            "audio_s": 12.5,
            "audio_s_since_sync": 0.0,
        },
        **{
            "observing": [[8, ["validation"]]],
            "settings": settings,
            "audio_format": AUDIO_FORMAT,
            "best": [5, 0.25],
        },
        **{
            "symbols": list("abcdefg"),
            "languages": ["en", "ka"],
            "speakers": ["anna"],
            "corpus": "0" * 64,
            "texts": "",
        },
    }


def prepare(draw: random.Random, place: Place) -> Call:
    """Write a run of two checkpoints; the newest, which is read, or both are hostile."""
    run, task = place.runs / "voice", draw.choice(("tts", "tts", "tts", "asr", "vocoder"))
    groups = [(group, ARRAYS.items()) for group in GROUPS]
    for step in (5, 8):
        best = draw.choice((None, [5, 0.25], [8, 0.2]))
        write_checkpoint(
            checkpoint_of(run / "checkpoints", step),
            groups,
            {**_metadata(task), "step": step, "best": best},
        )
    for step in draw.choice(((8,), (8,), (5, 8))):
        checkpoint = checkpoint_of(run / "checkpoints", step)
        for _ in range(draw.choice((1, 1, 1, 2))):
            if all(
                path.is_file() and not path.is_symlink() for path in checkpoint.iterdir()
            ):  # it can be overwritten
                draw.choice(FAULTS)(draw, place, checkpoint, _metadata(task))
    return partial(draw.choice((_resume, _resume, _load, _synthesize)), run, task)


def _resume(run: Path, task: str) -> None:
    """As `--resume`: the newest checkpoint, all of its archives."""
    from myxtts.training.checkpoint import position_of, restore_groups

    checkpoint = latest(run / "checkpoints")
    if checkpoint is None:
        return
    metadata = read_metadata(checkpoint)
    settings_of(checkpoint, metadata)
    vocabulary_of(metadata)
    read_best(checkpoint)
    restore_groups(checkpoint, {group: _variables() for group in GROUPS})
    position_of(metadata), observations_of(metadata)
    json.dumps([metadata["step"], metadata["replicas"], metadata["audio_s"]])


def _load(run: Path, task: str) -> None:
    """As a command that loads the network of a run: the best checkpoint."""
    from myxtts.training.checkpoint import restore_variables

    checkpoint = select_checkpoint(run)
    metadata = read_metadata(checkpoint)
    check_task(checkpoint, settings_of(checkpoint, metadata).model.task, task)
    vocabulary_of(metadata), audio_format_of(metadata)
    restore_variables(weights_file(checkpoint, metadata), _variables())
    for group in further_groups(checkpoint):
        read_arrays(checkpoint / f"{group}.npz")


def _synthesize(run: Path, task: str) -> None:
    """As `myxtts synthesize`, before it imports TensorFlow."""
    check_inputs(run, "Good morning.", (), "en", None, None)


@cache
def _variables() -> dict[str, Any]:
    import tensorflow as tf

    return {name: tf.Variable(array) for name, array in ARRAYS.items()}


def _archive(draw: random.Random, checkpoint: Path) -> Path:
    return checkpoint / f"{draw.choice(GROUPS)}.npz"


def _bytes_of_a_member(draw: random.Random, place: Place, checkpoint: Path, metadata: dict) -> None:
    path = draw.choice((_archive(draw, checkpoint), checkpoint / "state.json"))
    path.write_bytes(mutate_bytes(draw, path.read_bytes() if path.is_file() else b""))


def _odd_member(draw: random.Random, place: Place, checkpoint: Path, metadata: dict) -> None:
    path = draw.choice((_archive(draw, checkpoint), checkpoint / "state.json"))
    if path.is_file():
        content = path.read_bytes()
        path.unlink()
        write_odd_file(draw, path, place, content, named=True)


def _state_value(draw: random.Random, place: Place, checkpoint: Path, metadata: dict) -> None:
    """A value of another type, a missing or a further key, at any depth."""
    changed = json.loads(json.dumps(metadata))
    for _ in range(draw.choice((1, 1, 3))):
        target: Any = changed
        while isinstance(target, dict) and target:
            key = draw.choice(list(target))
            if isinstance(target[key], dict) and target[key] and draw.random() < 0.8:
                target = target[key]
                continue
            if draw.random() < 0.3:
                del target[key]
            else:
                target[draw.choice((key, key, key, "", "x"))] = draw.choice(VALUES)
            break
    changed.setdefault("format", FORMAT)
    if draw.random() < 0.05:
        changed["format"] = draw.choice(VALUES)
    (checkpoint / "state.json").write_text(json.dumps(changed), encoding="utf-8")


def _state_text(draw: random.Random, place: Place, checkpoint: Path, metadata: dict) -> None:
    """JSON that is large, deep, repeated or of another kind."""
    size = draw.choice((1_000, 100_000, MAX_BYTES))
    unit = draw.choice(
        (
            "[",
            '{"a":',
            "[],",
            "{},",
            "1,",
            '"",',
            "9",
            '"\\ud800",',
            " ",
            '"a":1,',
            "\\",
            "NaN,",
            "1e9,",
            "[[],",
        )
    )
    filled = (unit * (size // len(unit) + 1))[:size].rstrip(",")
    text = json.dumps({"format": FORMAT, **metadata})
    text = draw.choice(
        (
            filled,
            f'{{"format": {FORMAT}, "symbols": [{filled}]}}',
            f'{{"format": {FORMAT}, "settings": {{"data": {{"x": [{filled}]}}}}, "step": 1}}',
            f'{text[:-1]}, "more": [{filled}]}}',
            f"{text[:-1]}, {text[1:]}",
            f"{text[:-1]}, {filled}}}",
            text * 2,
            "[]",
            "null",
            "",
            f"\ufeff{text}",
            text.replace('"step": 8', f'"step": {"9" * size}'),
        )
    )
    data = text.encode("utf-16" if draw.random() < 0.05 else "utf-8")
    (checkpoint / "state.json").write_bytes(data)


def _npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, array, allow_pickle=allow_pickle)
    return content.getvalue()


class _Call:
    """Unpickles to a call that makes a file."""

    def __init__(self, path: Path):
        self._path = path

    def __reduce__(self):
        return os.mkdir, (str(self._path),)


def _array(draw: random.Random, place: Place) -> bytes:
    """The file of an array: of another type, with a header that lies, or pickled."""
    array = ARRAYS[draw.choice(tuple(ARRAYS))]
    choice = draw.randrange(6)
    if choice == 0:
        return _npy(
            array.astype(
                draw.choice((">f4", "f2", "f8", "c8", "i1", "u8", "S3", "U3", "?", "M8[s]"))
            )
        )
    if choice == 1:
        return _npy(np.array([{"a": 1}], object), allow_pickle=True)
    if choice == 2:
        header = _npy(np.array([None], object), allow_pickle=True)
        return header[: header.index(b"\n") + 1] + pickle.dumps(_Call(place.outside / "pwned"))
    if choice == 3:
        return _npy(
            draw.choice(
                (
                    np.zeros(0, np.float32),
                    np.zeros((3, 4, 1), np.float32),
                    np.float32(1),
                    np.asfortranarray(ARRAYS["embedding/weights"]),
                )
            )
        )
    if choice == 4:
        return mutate_bytes(draw, _npy(array))
    shape = draw.choice(
        (
            "(1099511627776,)",
            "(-1,)",
            "(3, 4)",
            "(2**40,)",
            "()",
            "(0, 1099511627776)",
            "(" * 500,
            "[3]",
            "(True,)",
            "(1e3,)",
            "(4611686018427387904, 4)",
            "(99999999999999999999,)",
        )
    )
    dtype = draw.choice(
        (
            "'<f4'",
            "'|O'",
            "'<f4'",
            "[('a', '<f4')]",
            "'V99999999999'",
            "'<f4000'",
            "None",
            "__import__('os')",
            "'|S9223372036854775807'",
            "'<m8'",
        )
    )
    head = (
        f"{{'descr': {dtype}, 'fortran_order': {draw.choice(('False', 'True', '1', 'None'))},"
        f" 'shape': {shape}, }}"
    )
    head = draw.choice((head, head, head, head * 50, " " * 70_000 + head, ""))
    version = draw.choice(((1, 0), (1, 0), (2, 0), (3, 0), (9, 9)))
    size = draw.choice((len(head), len(head), 0, 0xFFFF, 0xFFFFFFFF))
    packed = struct.pack("<H", size & 0xFFFF) if version == (1, 0) else struct.pack("<I", size)
    return b"\x93NUMPY" + bytes(version) + packed + head.encode() + array.tobytes()


def _odd_arrays(draw: random.Random, place: Place, checkpoint: Path, metadata: dict) -> None:
    """An archive with odd arrays, names, compression or flags."""
    names = (
        "../../evil",
        "/evil",
        "a/../b",
        "",
        "\x1b[2J",
        "\u202e",
        "x" * 60_000,
        "embedding/weights",
        "c\\d",
        "☃",
        "nul\0l",
    )
    compression = draw.choice(
        (zipfile.ZIP_STORED,) * 5 + (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    )
    path = _archive(draw, checkpoint)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, array in ARRAYS.items():
            if draw.random() < 0.9:
                content = _array(draw, place) if draw.random() < 0.4 else _npy(array)
                archive.writestr(
                    f"{draw.choice(names) if draw.random() < 0.1 else name}.npy", content
                )
        if draw.random() < 0.1:
            archive.writestr("bomb.npy", _npy(np.zeros(3_000_000, np.float32)))
        if draw.random() < 0.05:
            for number in range(3_000):
                archive.writestr(f"{number}.npy", b"")
    if draw.random() < 0.4:
        _lie_in_directory(draw, path)


def _lie_in_directory(draw: random.Random, path: Path) -> None:
    """Sizes, offsets and flags of the archive's directory that are wrong: members that overlap or
    promise much.
    """
    data = bytearray(path.read_bytes())
    entries = [at for at in range(len(data) - 46) if data[at : at + 4] == b"PK\1\2"]
    for at in draw.sample(entries, min(len(entries), draw.choice((1, 1, 3)))):
        offset, size = draw.choice(
            ((8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (42, 4))
        )
        value = draw.choice(
            (
                b"\0" * size,
                b"\xff" * size,
                b"\1" + b"\0" * (size - 1),
                data[entries[0] + offset : entries[0] + offset + size],
            )
        )
        data[at + offset : at + offset + size] = value
    if (end := data.rfind(b"PK\5\6")) >= 0 and draw.random() < 0.3:
        offset, size = draw.choice(((8, 2), (10, 2), (12, 4), (16, 4), (20, 2)))
        data[end + offset : end + offset + size] = draw.choice((b"\0" * size, b"\xff" * size))
    path.write_bytes(bytes(data))


def _files(draw: random.Random, place: Place, checkpoint: Path, metadata: dict) -> None:
    """Members that are missing or too many, and folders with odd names beside the checkpoint."""
    choice = draw.randrange(4)
    if choice == 0:
        draw.choice((_archive(draw, checkpoint), checkpoint / "state.json")).unlink(missing_ok=True)
    elif choice == 1:
        for number in range(draw.choice((1, 200))):
            (
                checkpoint
                / f"{draw.choice(('group', 'x' * 100, os.fsdecode(bytes([0x1B, 0xFF]))))}{number}.npz"
            ).write_bytes(_npy(np.ones(2)))
    elif choice == 2:
        name = draw.choice(
            (
                "step-",
                "step-x",
                "step-٣",
                "step-³",
                f"step-{'9' * 200}",
                "step--1",
                "step-000009",
                "step-9.0",
                ".former-step-000008",
            )
        )
        (checkpoint.parent / name).mkdir(exist_ok=True)
    else:
        name = draw.choice(("step-000009", f"step-{'9' * 200}", "step-0"))
        if not (checkpoint.parent / name).exists():
            write_odd_file(draw, checkpoint.parent / name, place, b"x", named=True)


Fault = Callable[[random.Random, Place, Path, dict], None]
FAULTS: tuple[Fault, ...] = (
    *(_bytes_of_a_member, _bytes_of_a_member, _odd_member, _state_value, _state_value, _state_text),
    *(_odd_arrays, _odd_arrays, _odd_arrays, _files),
)
