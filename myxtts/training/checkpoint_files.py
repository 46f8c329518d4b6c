"""The files of a checkpoint: a folder of numpy archives, written whole or not at all. No TensorFlow.

checkpoints/step-000500/
    model.npz  averages.npz  optimizer.npz    one array for each variable, by name
    GROUP.npz                                 weights of a further loss group of the model, such as discriminators
    state.json                                the metadata: step, position, best so far, vocabulary, corpus, settings
"""

import hashlib
import json
import logging
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.errors import CheckpointError
from myxtts.files import fsync_folder, name_in_errors, write_whole

FORMAT = 6

log = logging.getLogger(__name__)


class Best(NamedTuple):
    """The checkpoint with the lowest validation loss so far."""

    step: int
    loss: float


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first; folders of other names are ignored."""
    return sorted((path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal()), key=step_of)


def partial_of(checkpoint: Path) -> Path:
    """Return the name of a checkpoint while it is not complete."""
    return checkpoint.with_name(f".partial-{checkpoint.name}")


def former_of(checkpoint: Path) -> Path:
    """Return the name of a checkpoint that exists while another one of the same step takes its place."""
    return checkpoint.with_name(f".former-{checkpoint.name}")


def put_back_former(folder: Path) -> None:
    """Put back each checkpoint whose process was killed after it gave its name up, and before another took it."""
    for former in folder.glob(".former-*"):
        target = folder / former.name.removeprefix(".former-")
        if not target.exists():
            with suppress(FileNotFoundError):  # another worker of the job was faster
                os.rename(former, target)
                log.warning("checkpoint     %s was put back; the process was killed while it rewrote it", target)


def remove_remains(folder: Path) -> None:
    """Remove what killed processes left behind: parts of checkpoints, and former ones that are replaced."""
    for remains in (*folder.glob(".partial-*"), *folder.glob(".former-*")):
        shutil.rmtree(remains)


def checkpoint_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def further_groups(checkpoint: Path) -> list[str]:
    """Return the names of the loss groups whose weights a checkpoint has beside those of the network."""
    return sorted({path.stem for path in checkpoint.glob("*.npz")}.difference(("model", "averages", "optimizer")))


def latest(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, if there is one."""
    checkpoints = list_checkpoints(folder)
    return checkpoints[-1] if checkpoints else None


def read_best(checkpoint: Path) -> Best | None:
    """Return the best checkpoint up to this one, if any was validated."""
    best = read_metadata(checkpoint)["best"]
    return Best(*best) if best else None


def read_metadata(checkpoint: Path) -> dict[str, Any]:
    """Return the metadata of a checkpoint: its state.json.

    Raises:
        CheckpointError: the file is missing, damaged or of another format.
    """
    path = checkpoint / "state.json"
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(metadata, dict):
            raise ValueError("it does not hold a JSON object")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}. {advice(checkpoint)}") from error
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{checkpoint} has format {metadata.get('format')}, but this version of MyXTTS reads format {FORMAT}. "
            "Use the version that wrote it."
        )
    return metadata


def update_metadata(checkpoint: Path, changes: Mapping[str, Any]) -> None:
    """Replace some of the metadata of a checkpoint, whole or not at all."""
    metadata = {**read_metadata(checkpoint), **changes}
    write_whole(checkpoint / "state.json", json.dumps(metadata, ensure_ascii=False, indent=1).encode())


def advice(checkpoint: Path) -> str:
    """Return what to do about a damaged checkpoint."""
    return f"Remove the folder {checkpoint} to use the previous checkpoint."


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
        by: distinguishes the temporary names of writers that may write the same checkpoint at the same time.
        replace: replace a checkpoint that exists.

    Raises:
        OSError: the disk refuses, or the checkpoint exists (ENOTEMPTY). The temporary folder is removed, a checkpoint
            that was to be replaced stays, and the error names the file.
    """
    temporary = partial_of(target.with_name(target.name + by))
    if temporary.exists():  # left behind by a kill
        shutil.rmtree(temporary)
    temporary.mkdir(parents=True)
    try:
        for group, arrays in groups:
            write_arrays(temporary / f"{group}.npz", arrays)
        text = json.dumps({"format": FORMAT, **metadata}, ensure_ascii=False, indent=1)
        write_whole(temporary / "state.json", text.encode())
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
    """Rename a complete checkpoint to the name of one that exists. A kill between the renames: `put_back_former`."""
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
    """Return the arrays of an archive by name; raise CheckpointError if it is missing or damaged."""
    with opened_arrays(path) as arrays:
        return dict(arrays)


@contextmanager
def opened_arrays(path: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """Open an archive; each array is read when it is taken.

    Raises:
        CheckpointError: the archive is missing or damaged, by the checksum of each array.
    """
    with _explained(path):
        with zipfile.ZipFile(path) as archive:  # checksums first: numpy parses a header before it reads the array
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
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


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (
        OSError,
        ValueError,
        EOFError,
        RuntimeError,
        zipfile.BadZipFile,
    ) as error:  # RuntimeError: encrypted
        raise CheckpointError(f"{path} cannot be read: {error}. {advice(path.parent)}") from error


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
