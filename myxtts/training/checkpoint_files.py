"""The files of a checkpoint: a folder of safetensors, written whole or not at all. No TensorFlow.

checkpoints/step-000500/
    model.safetensors       the weights of the network, by names of variables
    averages.safetensors    their moving averages, with --ema-decay
    optimizer.safetensors   the state of the optimizers
    GROUP.safetensors       weights of a further loss group of the model, such as discriminators
    state.json              step, position, best so far, vocabulary, corpus, settings, digests

The last line of state.json is the checksum of the lines above it. These hold the digest of each
group of arrays, so this one checksum covers the whole checkpoint.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from myxtts.errors import CheckpointError
from myxtts.files import (
    attach_path_to_errors,
    fsync_folder,
    json_bytes,
    partial_folder_of,
    write_whole,
)
from myxtts.training.checkpoint_metadata import Metadata, check_types, describe_types

FORMAT = 7
# What users of older versions call the formats that are rejected by name.
FORMER_FORMATS = "Formats up to 6 are numpy archives."
CHECKSUM = "sha256"  # key of state.json
DIGESTS = "digests"  # key of state.json: group of arrays -> digest
_CHECKSUM = re.compile(rb' "%s": "([0-9a-f]{64})"\n}\Z' % CHECKSUM.encode())
SHOWN_CHARACTERS = 300  # of a reason, which may quote a name in the file
SAFETENSORS_TYPES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}
UNREADABLE = (OSError, ValueError, SafetensorError, RecursionError)

log = logging.getLogger(__name__)


class Best(NamedTuple):
    """The checkpoint with the lowest validation loss so far."""

    step: int
    loss: float


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first; folders of other names are ignored."""
    return sorted(
        (path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal()),
        key=step_of,
    )


def former_of(checkpoint: Path) -> Path:
    """Return the name of a checkpoint that exists while another one of the same step takes its
    place.
    """
    return checkpoint.with_name(f".former-{checkpoint.name}")


def put_back_former(folder: Path) -> None:
    """Put back each checkpoint whose process was killed after it gave its name up, and before
    another took it.
    """
    for former in folder.glob(".former-*"):
        target = folder / former.name.removeprefix(".former-")
        if not target.exists():
            with suppress(FileNotFoundError):  # another worker of the job was faster
                os.rename(former, target)
                log.warning(
                    "checkpoint     %s was put back; the process was killed while it rewrote it",
                    target,
                )


def remove_remains(folder: Path) -> None:
    """Remove what killed processes left behind: parts of checkpoints, and former ones that are
    replaced.
    """
    for remains in (*folder.glob(".partial-*"), *folder.glob(".former-*")):
        try:
            shutil.rmtree(remains)
        except OSError as error:  # of another user
            log.warning("%s cannot be removed: %s: %s", remains, error.filename, error.strerror)


def checkpoint_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def groups_of(checkpoint: Path) -> list[str]:
    """Return the names of the groups of arrays of a checkpoint."""
    return sorted(read_metadata(checkpoint)[DIGESTS])


def further_groups(checkpoint: Path) -> list[str]:
    """Return the loss groups whose weights a checkpoint has besides those of the network."""
    return [
        group for group in groups_of(checkpoint) if group not in ("model", "averages", "optimizer")
    ]


def latest(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, if there is one."""
    checkpoints = list_checkpoints(folder)
    return checkpoints[-1] if checkpoints else None


def read_best(checkpoint: Path) -> Best | None:
    """Return the best checkpoint up to this one, if any was validated."""
    best = read_metadata(checkpoint)["best"]
    return Best(*best) if best else None


def read_metadata(checkpoint: Path) -> Metadata:
    """Return the metadata of a checkpoint: its state.json.

    Raises:
        CheckpointError: the file is missing, damaged or of another format, or a value has another
            type.
    """
    with _explained(checkpoint / "state.json"):
        metadata = _load_metadata(checkpoint)
    if (written := metadata.get("format")) != FORMAT:
        raise CheckpointError(
            f"{checkpoint} has format {str(written)[:SHOWN_CHARACTERS]}, but this version of MyXTTS"
            f" reads format {FORMAT} (safetensors). {FORMER_FORMATS} Use the version that wrote it."
        )
    return Metadata(metadata, checkpoint / "state.json", lambda: advice(checkpoint))


def _load_metadata(checkpoint: Path) -> dict[str, Any]:
    """Return the content of a state.json; raises one of UNREADABLE."""
    content = (checkpoint / "state.json").read_bytes()
    checksum = _CHECKSUM.search(content)
    if checksum and checksum[1] != _checksum(content[: checksum.start()]):
        raise ValueError("its checksum is wrong")
    text = content.decode("utf-8")
    metadata = json.loads(text)
    if not isinstance(metadata, dict):
        raise ValueError("it does not hold a JSON object")
    if metadata.get("format") == FORMAT:
        if not checksum:
            raise ValueError("its last line is not its checksum")
        check_types(text)
    metadata.pop(CHECKSUM, None)
    return metadata


def write_metadata(checkpoint: Path, metadata: Mapping[str, Any]) -> None:
    """Write the state.json of a checkpoint, whole or not at all."""
    values = {name: value for name, value in metadata.items() if name != "format"}
    body = json_bytes({"format": FORMAT, **values}).removesuffix(b"\n}") + b",\n"
    write_whole(
        checkpoint / "state.json", body + b' "%s": "%s"\n}' % (CHECKSUM.encode(), _checksum(body))
    )


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def update_metadata(checkpoint: Path, changes: Mapping[str, Any]) -> None:
    """Replace some of the metadata of a checkpoint, whole or not at all."""
    write_metadata(checkpoint, {**read_metadata(checkpoint), **changes})


def advice(checkpoint: Path) -> str:
    """Return what to do about a damaged checkpoint: which others to remove, so that the newest
    intact one is used.
    """
    folder = checkpoint.parent
    if not checkpoint.exists() and list_checkpoints(folder):
        return (
            "It was removed meanwhile, as a run removes old checkpoints while it trains. Start the"
            " command again."
        )
    others = [other for other in list_checkpoints(folder) if other != checkpoint]
    if not checkpoint.name.startswith("step-"):  # of a sync
        return f"Remove the folder {checkpoint}."
    intact = next(filter(_is_intact, reversed(others)), None)
    if intact is None:
        return f"No other checkpoint in {folder} is intact: start another run with --run."
    damaged = [checkpoint, *(other for other in others if step_of(other) > step_of(intact))]
    return (
        f"The newest intact checkpoint is {intact}. To use it, remove"
        f" {' and '.join(map(str, damaged))}."
    )


def _is_intact(checkpoint: Path) -> bool:
    """Whether the metadata and all arrays of a checkpoint can be read."""
    try:
        metadata = _load_metadata(checkpoint)
        if metadata.get("format") != FORMAT:
            return False
        for group, digest in metadata[DIGESTS].items():
            with _checked_archive(archive_of(checkpoint, group), digest):
                pass
    except UNREADABLE:
        return False
    return True


def archive_of(checkpoint: Path, group: str) -> Path:
    """Return the file of a group of arrays."""
    return checkpoint / f"{group}.safetensors"


def write_checkpoint(
    target: Path,
    groups: Iterable[tuple[str, Iterable[tuple[str, np.ndarray]]]],
    metadata: Mapping[str, Any],
    by: str = "",
    replace: bool = False,
) -> None:
    """Write a checkpoint under a temporary name, to the disk, then rename it.

    Args:
        target: folder of the checkpoint; its parents are made.
        groups: (name of a group, its arrays by name); one group after another is in memory.
        metadata: of state.json, besides the format and the digests.
        by: distinguishes the temporary names of writers that may write the same checkpoint at the
            same time.
        replace: replace a checkpoint that exists.

    Raises:
        OSError: the disk refuses, or the checkpoint exists (ENOTEMPTY). The temporary folder is
            removed, a checkpoint that was to be replaced stays, and the error names the file.
    """
    temporary = partial_folder_of(target.with_name(target.name + by))
    if temporary.exists():  # left behind by a kill
        shutil.rmtree(temporary)
    temporary.mkdir(parents=True)
    try:
        digests = {
            group: write_arrays(archive_of(temporary, group), dict(arrays))
            for group, arrays in groups
        }
        write_metadata(temporary, {**metadata, DIGESTS: digests})
        fsync_folder(temporary)
        if replace and target.exists():
            _replace(target, temporary)
        else:
            os.rename(temporary, target)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_folder(target.parent)


def _replace(target: Path, temporary: Path) -> None:
    """Rename a complete checkpoint to the name of one that exists. A kill between the renames:
    `put_back_former`.
    """
    former = former_of(target)
    os.rename(target, former)
    try:
        os.rename(temporary, target)
    except OSError:
        os.rename(former, target)
        raise
    try:
        fsync_folder(target.parent)
    finally:
        shutil.rmtree(former, ignore_errors=True)


def read_arrays(checkpoint: Path, group: str) -> dict[str, np.ndarray]:
    """Return the arrays of a group by name.

    Raises:
        CheckpointError: the group is missing or damaged, or is not that of this checkpoint.
    """
    digest = _recorded_digest(checkpoint, group)
    path = archive_of(checkpoint, group)
    with _explained(path):
        arrays = load_file(path)
        _check_digest(digest, digest_of(arrays))
    return arrays


@contextmanager
def opened_arrays(checkpoint: Path, group: str) -> Iterator[Mapping[str, np.ndarray]]:
    """Open a group of arrays, each of which is read when it is used.

    All are read once before: what has begun must not fail.

    Raises:
        CheckpointError: as `read_arrays`.
    """
    digest = _recorded_digest(checkpoint, group)
    path = archive_of(checkpoint, group)
    with ExitStack() as scope:
        with _explained(path):
            arrays = scope.enter_context(_checked_archive(path, digest))
        yield arrays


def _recorded_digest(checkpoint: Path, group: str) -> str:
    return read_metadata(checkpoint)[DIGESTS][group]


@contextmanager
def _checked_archive(path: Path, digest: str) -> Iterator[Mapping[str, np.ndarray]]:
    """Open a file of arrays; raises one of UNREADABLE if it does not have this digest."""
    with safe_open(path, framework="np") as file:
        arrays = _Arrays(file)
        _check_digest(digest, digest_of(arrays))
        yield arrays


def _check_digest(expected: str, digest: str) -> None:
    if digest != expected:
        raise ValueError("its arrays are not those that state.json records")


class _Arrays(Mapping):
    """The arrays of an open file; each access reads one."""

    def __init__(self, file: safe_open):
        self._file = file
        self._names = file.keys()

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        return self._file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        reason = (
            describe_types(error)
            if isinstance(error, ValidationError)
            else str(error) or type(error).__name__
        )
        raise CheckpointError(
            f"{path} cannot be read: {reason[:SHOWN_CHARACTERS]}. {advice(path.parent)}"
        ) from error


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Write arrays to the disk, as safetensors; return their digest.

    The file is the length of its header in 8 bytes, the header as JSON, and the values in C order
    without gaps: https://github.com/huggingface/safetensors#format
    """
    # Of the library's functions, `save` first copies all arrays (172 MB of a `small` state took 2.3
    # times as long), and `save_file` makes files that only their owner may read, with errors that
    # do not tell a full disk.
    contents = {}
    header = {}
    end = 0
    for name in sorted(arrays, key=lambda name: -arrays[name].itemsize):  # aligned in memory
        array = np.asarray(arrays[name], order="C")
        begin, end = end, end + array.nbytes
        header[name] = {
            "dtype": SAFETENSORS_TYPES[str(array.dtype)],
            "shape": array.shape,
            "data_offsets": (begin, end),
        }
        contents[name] = array
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with attach_path_to_errors(path), open(path, "wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for array in contents.values():
            file.write(_bytes_of(array))
        file.flush()
        os.fsync(file.fileno())
    return digest_of(contents)


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        digest.update(_bytes_of(array))
    return digest.hexdigest()


def _bytes_of(array: np.ndarray) -> memoryview:
    """Return the values in C order. Types such as bfloat16 have no buffers of their own."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
