"""The files of a checkpoint: a folder of safetensors, written whole or not at all. No TensorFlow.

checkpoints/step-000500/
    model.safetensors       the weights of the network, by names of variables
    averages.safetensors    their moving averages, with --ema-decay
    optimizer.safetensors   the state of the optimizers
    GROUP.safetensors       weights of a further loss group of the model, such as discriminators
    state.json              a `Record`

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from myxtts.config.schema import Config
from myxtts.data.batch_plan import Position
from myxtts.data.manifest import Vocabulary
from myxtts.errors import CheckpointError
from myxtts.files import (
    attach_path_to_errors,
    fsync_folder,
    json_bytes,
    partial_folder_of,
    write_whole,
)
from myxtts.text.symbols import SymbolTable
from myxtts.training.schedule import Observation

FORMAT = 7

# Names of groups of arrays.
MODEL = "model"
AVERAGES = "averages"
OPTIMIZER = "optimizer"

_CHECKSUM_LINE = re.compile(rb' "sha256": "([0-9a-f]{64})"\n}\Z')
# Of a reason: it may quote a name in the file.
MAX_REASON_CHARACTERS = 300
UNREADABLE = (OSError, ValueError, SafetensorError, RecursionError)
SAFETENSORS_TYPES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}

log = logging.getLogger(__name__)


class Best(NamedTuple):
    """The checkpoint with the lowest validation loss so far."""

    step: int
    loss: float


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Source(_Section):
    """A checkpoint of another run.

    Attributes:
        weights: digest of its weights.
    """

    run: str
    step: int
    weights: str


class Ancestor(Source):
    """The checkpoint that a run started from. Runs with equal `weights` started equally.

    Attributes:
        symbols, languages, speakers: how many rows of the vocabulary come from it, the first ones.
    """

    symbols: int
    languages: int
    speakers: int


class Participant(_Section):
    """A job of an average."""

    job: int
    audio_s: float
    coefficient: float


class MergedInput(_Section):
    """A checkpoint of a merge."""

    checkpoint: str
    step: int
    audio_s: float
    coefficient: float


class Record(_Section):
    """What a checkpoint records besides its arrays; the content of state.json.

    A running process also has the record of its checkpoints, with the defaults of what changes with
    each step.

    Attributes:
        position: of the next step in the plan.
        replicas: number of replicas that shared the steps.
        audio_s: seconds of speech trained on since the start or the fork.
        audio_s_since_sync: the same since the last sync with other jobs (local SGD).
        best: best checkpoint up to this one, if any was validated.
        pending_observations: due up to this step, with results that it does not know; oldest first.
        provisional: nothing but an observation asked for the checkpoint.
        corpus: fingerprint of the training corpus; None before the first step of a fork or merge.
        held_out, texts: fingerprints of held-out utterances and of the teacher's texts.
        start: digest of the weights that the run, or the run it was forked from, started with.
        participants, missed_syncs: of the average of a sync; job -> number of syncs it missed.
        merge_inputs, kept_input: of a merge; the input whose weights it has instead of the mean.
        digests: group of arrays -> digest.
    """

    settings: Config
    symbols: tuple[str, ...]
    languages: tuple[str, ...]
    speakers: tuple[str, ...]
    audio_format: dict[str, Any]
    start: str
    corpus: str | None = None
    held_out: str | None = None
    ancestor: Ancestor | None = None
    teacher: Source | None = None
    texts: str | None = None

    step: int = 0
    position: Position = Position()
    replicas: int = 1
    audio_s: float = 0.0
    audio_s_since_sync: float = 0.0
    best: Best | None = None
    pending_observations: tuple[Observation, ...] = ()
    provisional: bool = False

    participants: tuple[Participant, ...] = ()
    missed_syncs: dict[int, int] = {}
    merge_inputs: tuple[MergedInput, ...] = ()
    kept_input: str | None = None
    digests: dict[str, str] = {}

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(SymbolTable(self.symbols), self.speakers, self.languages)

    @property
    def inherited_vocabulary(self) -> Vocabulary | None:
        """Rows from the run's teacher, from its pretrained run, or from the run of its fork.

        None if the run started from the seed, without a teacher.
        """
        ancestor = self.ancestor
        speakers = self.speakers[: ancestor.speakers] if ancestor else ()
        if self.teacher is not None:
            return Vocabulary(SymbolTable(self.symbols), speakers, self.languages)
        if ancestor is None:
            return None
        symbols = SymbolTable(self.symbols[: ancestor.symbols])
        return Vocabulary(symbols, speakers, self.languages[: ancestor.languages])

    @property
    def weights_group(self) -> str:
        """The group of the weights to use: the averaged ones if the run has them."""
        return AVERAGES if self.settings.training.ema_decay else MODEL


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint whose state.json was read."""

    path: Path
    record: Record

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """Read the record of a checkpoint; raises as `read_record`."""
        return cls(path, read_record(path))

    @property
    def groups(self) -> list[str]:
        """The names of its groups of arrays."""
        return sorted(self.record.digests)

    @property
    def further_groups(self) -> list[str]:
        """The loss groups whose weights it has besides those of the network."""
        return [group for group in self.groups if group not in (MODEL, AVERAGES, OPTIMIZER)]

    @property
    def weights_digest(self) -> str:
        """The digest of the weights that inference uses."""
        return self.record.digests[self.record.weights_group]

    def arrays(self, group: str) -> dict[str, np.ndarray]:
        """Return the arrays of a group by name.

        Raises:
            CheckpointError: the group is missing or damaged, or is not that of this checkpoint.
        """
        path = archive_of(self.path, group)
        with _explain_unreadable(path):
            arrays = load_file(path)
            _check_digest(self.record, group, digest_of(arrays))
        return arrays

    @contextmanager
    def opened(self, group: str) -> Iterator[Mapping[str, np.ndarray]]:
        """Open a group of arrays, each of which is read when it is used.

        All are read once before: what has begun must not fail. Raises as `arrays`.
        """
        path = archive_of(self.path, group)
        with _explain_unreadable(path):
            file = _OpenArrays(path)
            _check_digest(self.record, group, digest_of(file))
        with file:
            yield file

    def update(self, **changes: Any) -> "Checkpoint":
        """Write a record with some changes, whole or not at all."""
        record = self.record.model_copy(update=changes)
        write_record(self.path, record)
        return Checkpoint(self.path, record)


class _OpenArrays(Mapping):
    """The arrays of an open file; each access reads one. A context manager."""

    def __init__(self, path: Path):
        self._file = safe_open(path, framework="np")
        self._names = self._file.keys()

    def __enter__(self) -> "_OpenArrays":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.__exit__(*exception)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        return self._file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _check_digest(record: Record, group: str, digest: str) -> None:
    if record.digests.get(group) != digest:
        raise ValueError("its arrays are not those that state.json records")


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first; folders of other names are ignored."""
    return sorted(
        (path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal()),
        key=step_of,
    )


def latest(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, if there is one."""
    checkpoints = list_checkpoints(folder)
    return checkpoints[-1] if checkpoints else None


def checkpoint_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def archive_of(checkpoint: Path, group: str) -> Path:
    """Return the file of a group of arrays."""
    return checkpoint / f"{group}.safetensors"


def backup_path(checkpoint: Path) -> Path:
    """Return the name of a checkpoint while another one of the same step replaces it."""
    return checkpoint.with_name(f".former-{checkpoint.name}")


def recover_interrupted_replace(folder: Path) -> None:
    """Restore checkpoints whose replacement was interrupted between the two renames."""
    for backup in folder.glob(".former-*"):
        target = folder / backup.name.removeprefix(".former-")
        if not target.exists():
            # Another worker of the job may be faster.
            with suppress(FileNotFoundError):
                os.rename(backup, target)
                log.warning(
                    "checkpoint     %s was put back; the process was killed while it rewrote it",
                    target,
                )


def remove_partial_checkpoints(folder: Path) -> None:
    """Remove what killed processes left: parts of checkpoints, and replaced ones."""
    for remains in (*folder.glob(".partial-*"), *folder.glob(".former-*")):
        # The folder may belong to another user.
        try:
            shutil.rmtree(remains)
        except OSError as error:
            log.warning("%s cannot be removed: %s: %s", remains, error.filename, error.strerror)


def read_record(checkpoint: Path) -> Record:
    """Read the state.json of a checkpoint.

    Raises:
        CheckpointError: the file is missing, damaged or of another format, or a value has another
            type.
    """
    path = checkpoint / "state.json"
    with _explain_unreadable(path):
        content = path.read_bytes()
        version = _format_of(content)
        if version == FORMAT:
            return _parse_record(content)
    raise CheckpointError(
        f"{checkpoint} has format {str(version)[:MAX_REASON_CHARACTERS]}, but this version of"
        f" MyXTTS reads format {FORMAT} (safetensors). Formats up to 6 are numpy archives. Use the"
        " version that wrote it."
    )


def _format_of(content: bytes) -> Any:
    document = json.loads(content)
    if not isinstance(document, dict):
        raise ValueError("it does not hold a JSON object")
    return document.get("format")


def _parse_record(content: bytes) -> Record:
    checksum = _CHECKSUM_LINE.search(content)
    if checksum is None or checksum[1] != _checksum(content[: checksum.start()]):
        raise ValueError("its last line is not the checksum of the lines above it")
    return Record.model_validate_json(content)


def write_record(checkpoint: Path, record: Record) -> None:
    """Write the state.json of a checkpoint, whole or not at all."""
    write_state_json(checkpoint, record.model_dump(mode="json"))


def write_state_json(checkpoint: Path, values: Mapping[str, Any]) -> None:
    """Write the values of a record with the format before and the checksum behind them."""
    body = json_bytes({"format": FORMAT, **values}).removesuffix(b"\n}") + b",\n"
    write_whole(checkpoint / "state.json", body + b' "sha256": "%s"\n}' % _checksum(body))


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def advice(checkpoint: Path) -> str:
    """Return what to do about a damaged checkpoint.

    The newest intact checkpoint is used if the newer ones are removed.
    """
    folder = checkpoint.parent
    if not checkpoint.exists() and list_checkpoints(folder):
        return (
            "It was removed meanwhile, as a run removes old checkpoints while it trains. Start the"
            " command again."
        )
    # A contribution or an average of a sync.
    if not checkpoint.name.startswith("step-"):
        return f"Remove the folder {checkpoint}."
    others = [other for other in list_checkpoints(folder) if other != checkpoint]
    intact = next(filter(_is_intact, reversed(others)), None)
    if intact is None:
        return f"No other checkpoint in {folder} is intact: start another run with --run."
    damaged = [checkpoint, *(other for other in others if step_of(other) > step_of(intact))]
    return (
        f"The newest intact checkpoint is {intact}. To use it, remove"
        f" {' and '.join(map(str, damaged))}."
    )


def _is_intact(checkpoint: Path) -> bool:
    """Whether the record and all arrays of a checkpoint can be read."""
    try:
        record = _parse_record((checkpoint / "state.json").read_bytes())
        for group in record.digests:
            with _OpenArrays(archive_of(checkpoint, group)) as arrays:
                _check_digest(record, group, digest_of(arrays))
    except UNREADABLE:
        return False
    return True


@contextmanager
def _explain_unreadable(path: Path) -> Iterator[None]:
    """Raise CheckpointError instead of UNREADABLE: which file, why, and what to do."""
    try:
        yield
    except UNREADABLE as error:
        reason = str(error) or type(error).__name__
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            location = [str(part) for part in first["loc"]]
            reason = f"{'.'.join(location)}: {first['msg']}"
            # A setting that this version lacks, or whose values have changed. The file is intact.
            if location[0] == "settings":
                raise CheckpointError(
                    f"the settings in {path.parent} cannot be used:"
                    f" {reason.removeprefix('settings.')}. Use the version of MyXTTS that wrote it."
                ) from error
        raise CheckpointError(
            f"{path} cannot be read: {reason[:MAX_REASON_CHARACTERS]}. {advice(path.parent)}"
        ) from error


def write_checkpoint(
    target: Path,
    groups: Iterable[tuple[str, Iterable[tuple[str, np.ndarray]]]],
    record: Record,
    by: str = "",
    replace: bool = False,
) -> Checkpoint:
    """Write a checkpoint under a temporary name, to the disk, then rename it.

    Args:
        target: folder of the checkpoint; its parents are made.
        groups: (name of a group, its arrays by name); one group after another is in memory.
        by: distinguishes the temporary names of writers that may write the same checkpoint at the
            same time.
        replace: replace a checkpoint that exists.

    Returns:
        the checkpoint, with the digests of its arrays in its record.

    Raises:
        OSError: the disk refuses, or the checkpoint exists (ENOTEMPTY). The temporary folder is
            removed, a checkpoint that was to be replaced stays, and the error names the file.
    """
    temporary = partial_folder_of(target.with_name(target.name + by))
    # A kill may have left it.
    if temporary.exists():
        shutil.rmtree(temporary)
    temporary.mkdir(parents=True)
    digests = {}
    try:
        for group, arrays in groups:
            digests[group] = write_arrays(archive_of(temporary, group), dict(arrays))
        record = record.model_copy(update={"digests": digests})
        write_record(temporary, record)
        fsync_folder(temporary)
        if replace and target.exists():
            _replace(target, temporary)
        else:
            os.rename(temporary, target)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    fsync_folder(target.parent)
    return Checkpoint(target, record)


def _replace(target: Path, temporary: Path) -> None:
    """Rename a complete checkpoint to the name of one that exists.

    `recover_interrupted_replace` mends a kill between the renames.
    """
    backup = backup_path(target)
    os.rename(target, backup)
    try:
        os.rename(temporary, target)
    except OSError:
        os.rename(backup, target)
        raise
    try:
        fsync_folder(target.parent)
    finally:
        shutil.rmtree(backup, ignore_errors=True)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Write arrays to the disk, as safetensors; return their digest.

    The file is the length of its header in 8 bytes, the header as JSON, and the values in C order
    without gaps: https://github.com/huggingface/safetensors#format
    """
    # Of the library's functions, `save` first copies all arrays (86 MB took 162 ms instead of 98),
    # and `save_file` makes files that only their owner may read, with errors that do not tell a
    # full disk.
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
