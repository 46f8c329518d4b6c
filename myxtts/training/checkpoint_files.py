"""The files of a checkpoint: a folder of numpy archives, written whole or not at all. No
TensorFlow.

checkpoints/step-000500/
    model.npz  averages.npz  optimizer.npz    one array for each variable, by name GROUP.npz
    weights of a further loss group of the model, such as discriminators state.json
    the metadata: step, position, best so far, vocabulary, corpus, settings
"""

import hashlib
import json
import logging
import math
import os
import re
import shutil
import stat
import struct
import tokenize
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from myxtts.errors import CheckpointError
from myxtts.files import fsync_folder, json_bytes, name_in_errors, partial_folder_of, write_whole
from myxtts.training.checkpoint_metadata import Metadata, check_types, describe_types

FORMAT = 6
CHECKSUM = "sha256"  # key of state.json
_CHECKSUM = re.compile(rb' "%s": "([0-9a-f]{64})"\n}\Z' % CHECKSUM.encode())
SHOWN_CHARACTERS = 300  # of a reason, which may quote a name in the archive
MAX_STATE_BYTES = 1 << 26  # a million texts of speakers take less
# what zipfile, numpy and json raise for damaged files; NotImplementedError is a RuntimeError
UNREADABLE = (
    *(OSError, ValueError, EOFError, RuntimeError, MemoryError, TypeError, OverflowError),
    *(SyntaxError, tokenize.TokenError, struct.error, zipfile.BadZipFile),
)

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


def further_groups(checkpoint: Path) -> list[str]:
    """Return the names of the loss groups whose weights a checkpoint has beside those of the
    network.
    """
    return sorted(
        {path.stem for path in checkpoint.glob("*.npz")}.difference(
            ("model", "averages", "optimizer")
        )
    )


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
            f" reads format {FORMAT}. Use the version that wrote it."
        )
    return Metadata(metadata, checkpoint / "state.json", lambda: advice(checkpoint))


def _load_metadata(checkpoint: Path) -> dict[str, Any]:
    """Return the content of a state.json; raises one of UNREADABLE."""
    path = checkpoint / "state.json"
    size = _size_of(path)
    if size > MAX_STATE_BYTES:
        raise ValueError(
            f"it has {size:,} bytes, and the largest that is read has {MAX_STATE_BYTES:,}"
        )
    content = path.read_bytes()
    if (checksum := _CHECKSUM.search(content)) and checksum[1] != _checksum(
        content[: checksum.start()]
    ):
        raise ValueError("its checksum is wrong")
    text = content.decode("utf-8")
    metadata = json.loads(text)
    if not isinstance(metadata, dict):
        raise ValueError("it does not hold a JSON object")
    if metadata.get("format") == FORMAT:
        check_types(text)
    metadata.pop(CHECKSUM, None)
    return metadata


def write_metadata(checkpoint: Path, metadata: Mapping[str, Any]) -> None:
    """Write the state.json of a checkpoint, whole or not at all.

    Its last line is a checksum of the lines before it. Without that line, as in older files,
    nothing is checked.
    """
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


def _size_of(path: Path) -> int:
    """Return the size of a file in bytes; raises ValueError if it is a folder, or a pipe, which
    could block.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    return status.st_size


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
    """Whether the metadata and all archives of a checkpoint can be read."""
    try:
        if _load_metadata(checkpoint).get("format") != FORMAT:
            return False
        for path in checkpoint.glob("*.npz"):
            _check_archive(path)
    except UNREADABLE:
        return False
    return (checkpoint / "model.npz").exists()


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
        groups: (name of an archive, its arrays by name), taken one after another.
        metadata: of state.json, beside `format`.
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
        for group, arrays in groups:
            write_arrays(temporary / f"{group}.npz", arrays)
        write_metadata(temporary, metadata)
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


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an archive by name, read in one pass.

    Raises:
        CheckpointError: the archive is missing or damaged, by the checksum of each array.
    """
    arrays = {}
    with _explained(path), _opened_archive(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:  # compares the checksum where the array ends
                arrays[member.filename.removesuffix(".npy")] = np.lib.format.read_array(
                    file, allow_pickle=False
                )
    return arrays


@contextmanager
def opened_arrays(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """Open an archive; each array is read when it is taken, and all of them once before: what has
    begun must not fail.

    Raises:
        CheckpointError: the archive is missing or damaged, by the checksum of each array.
    """
    with _explained(path):
        _check_archive(path)
        opened = np.load(path, allow_pickle=False)
    with opened:
        yield _Arrays(path, opened)


class _Arrays(Mapping):
    def __init__(self, path: Path, archive: np.lib.npyio.NpzFile):
        self._path, self._archive = path, archive

    def __getitem__(self, name: str) -> np.ndarray:
        with _explained(self._path):
            return self._archive[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._archive.files)

    def __len__(self) -> int:
        return len(self._archive.files)


def _check_archive(path: Path) -> None:
    """Read a whole archive; raise one of UNREADABLE if a size, a header or a checksum is wrong."""
    with _opened_archive(path) as archive:
        if damaged := archive.testzip():
            raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")


@contextmanager
def _opened_archive(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive whose sizes and headers were checked, before memory is taken for its arrays.

    A compressed member may promise terabytes, and so may the shape in a header; numpy would try to
    take the memory.

    Raises:
        one of UNREADABLE.
    """
    size = _size_of(path)
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("it is compressed, and archives of checkpoints are not")
        if sum(member.file_size for member in members) > size:
            raise ValueError(f"it promises more than its {size:,} bytes")
        for member in members:
            with archive.open(member) as file:
                _check_header(member.filename, file, member.file_size)
        yield archive


def _check_header(name: str, file: IO[bytes], size: int) -> None:
    """Raise ValueError if the header of an array of numbers does not fit the `size` bytes of its
    file.
    """
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{name} has format {version}")
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read_header(file)
    if dtype.kind not in "iuf":
        raise ValueError(f"{name} has {dtype}, and not numbers")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size - file.tell():
        raise ValueError(
            f"{name} promises the shape {shape}, which does not fit its {size:,} bytes"
        )


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


def write_arrays(path: Path, arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write an .npz archive to the disk; holds one array in memory at a time."""
    with name_in_errors(path), open(path, "wb") as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays:
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def digest_of(weights: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = weights[name]
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
