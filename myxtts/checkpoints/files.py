"""The files of a checkpoint: a folder of safetensors, written whole or not at all. No TensorFlow.

checkpoints/step-000500/
    model.safetensors       the weights of the network, by names of variables
    averages.safetensors    their moving averages, with --ema-decay
    optimizer.safetensors   the state of the optimizer
    state.json              a `Record`

The last line of state.json is the checksum of the lines above it. These hold the digest of each
group of arrays, so this one checksum covers the whole checkpoint.

What comes in are groups of arrays and a record. A thread of the run writes them, one group after
another, to a folder with a temporary name, and renames it when all of it is on the disk. What goes
out, when a run resumes or another program needs weights, are arrays whose digests were compared.
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
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from myxtts.base import files
from myxtts.base.errors import CheckpointError
from myxtts.base.progress import Observation, Position
from myxtts.config.advice import other_names
from myxtts.config.schema import Config
from myxtts.corpus.manifest import Vocabulary
from myxtts.text.frontend import TextFrontend
from myxtts.text.languages import choose_language
from myxtts.text.symbols import SymbolTable

FORMAT = 7

STATE = "state.json"
MODEL = "model"
AVERAGES = "averages"
OPTIMIZER = "optimizer"

_CHECKSUM_LINE = re.compile(rb' "sha256": "([0-9a-f]{64})"\n}\Z')
SAFETENSORS_TYPES = {
    "bool": "BOOL",
    "bfloat16": "BF16",
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}

log = logging.getLogger(__name__)


class Best(NamedTuple):
    """The checkpoint that is the best so far, and its figure: by default the validation loss."""

    step: int
    value: float


# The second is that of version 0.1.
VERSION_NAMES = AliasChoices("frontend_version", "espeakng_loader")


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Source(_Section):
    """A checkpoint of another run, and the digest of its weights."""

    run: str
    step: int
    weights: str


class Ancestor(Source):
    """The checkpoint that a run started from, and the numbers of rows of the vocabulary from it."""

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

    Attributes:
        language: that of all texts of the run's own corpus; None if they have several.
        lexicon: readings of words, from the file of --lexicon.
        frontend_version: of the package that made symbols of texts; "" if none was used.
        start: digest of the weights that the run, or the run it was forked from, started with.
        corpus: fingerprint of the training corpus; None before the first step of a fork or merge.
        held_out, texts: fingerprints of held-out utterances and of the teacher's texts.
        selected_by: what made `best` the best; see `selection_of`.
        since_best: number of results since then, none of which was better.
        batch_shares: the shares of the replicas in a step; empty where all are equal.
        audio_s: seconds of speech trained on since the start or the fork.
        audio_s_since_sync: the same since the last sync with other jobs (local SGD).
        pending_observations: due up to this step, with results not known yet; oldest first.
        participants, missed_syncs: jobs of the average of a sync; job -> syncs that it missed.
        merge_inputs, kept_input: inputs of a merge; the one whose weights it has, not the mean.
    """

    # The run: what it is trained on, and from which weights.
    settings: Config
    symbols: tuple[str, ...]
    languages: tuple[str, ...]
    language: str | None = None
    speakers: tuple[str, ...]
    lexicon: dict[str, str] = {}
    frontend_version: Annotated[str, Field(validation_alias=VERSION_NAMES)] = ""
    audio_format: dict[str, Any]
    start: str
    corpus: str | None = None
    held_out: str | None = None
    ancestor: Ancestor | None = None
    teacher: Source | None = None
    texts: str | None = None

    # Its progress: this part differs between the checkpoints of a run.
    step: int = 0
    position: Position = Position()
    replicas: int = 1
    batch_shares: tuple[float, ...] = ()
    audio_s: float = 0.0
    audio_s_since_sync: float = 0.0
    best: Best | None = None
    selected_by: str = "loss"
    since_best: int = 0
    pending_observations: tuple[Observation, ...] = ()

    # Averages over several jobs or runs, and the digest of each group of arrays.
    participants: tuple[Participant, ...] = ()
    missed_syncs: dict[int, int] = {}
    merge_inputs: tuple[MergedInput, ...] = ()
    kept_input: str | None = None
    digests: dict[str, str] = {}

    @property
    def frontend(self) -> TextFrontend:
        """The frontend that made symbols of the texts that the run was trained on."""
        data = self.settings.data
        return TextFrontend(
            data.text_frontend, data.text_normaliser, self.lexicon, self.frontend_version
        )

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(SymbolTable(self.symbols), self.speakers, self.languages)

    @property
    def inherited_vocabulary(self) -> Vocabulary | None:
        """Rows from the run's teacher, its pretrained run or the run of its fork, if it has one."""
        ancestor = self.ancestor
        speakers = self.speakers[: ancestor.speakers] if ancestor else ()
        if self.teacher is not None:
            return Vocabulary(SymbolTable(self.symbols), speakers, self.languages)
        if ancestor is None:
            return None
        symbols = SymbolTable(self.symbols[: ancestor.symbols])
        return Vocabulary(symbols, speakers, self.languages[: ancestor.languages])

    def choose_language(self, language: str | None) -> str:
        """Return the requested language, or the one of the run's corpus; see `choose_language`."""
        return choose_language(language or self.language, self.languages)

    @property
    def weights_group(self) -> str:
        """The group of the weights to use: the averaged ones if the run has them."""
        return AVERAGES if self.settings.training.ema_decay else MODEL


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint whose state.json was read.

    checkpoint = Checkpoint.read(folder / "step-000500")
    weights = checkpoint.arrays(checkpoint.record.weights_group)
    """

    path: Path
    record: Record

    @classmethod
    def read(cls, path: Path) -> "Checkpoint":
        """Read the record of a checkpoint; raises as `read_record`."""
        return cls(path, read_record(path))

    @property
    def groups(self) -> list[str]:
        return sorted(self.record.digests)

    @property
    def weights_digest(self) -> str:
        """The digest of the weights that inference uses."""
        return self.record.digests[self.record.weights_group]

    def arrays(self, group: str) -> dict[str, np.ndarray]:
        """Return the arrays of a group by name; raise CheckpointError for damaged ones."""
        path = archive_of(self.path, group)
        with _explain_unreadable(path):
            arrays = load_file(path)
            self._check_digest(group, arrays)
        return arrays

    @contextmanager
    def opened(self, group: str) -> Iterator[Mapping[str, np.ndarray]]:
        """Open a group of arrays, each of which is read when it is used; raises as `arrays`."""
        path = archive_of(self.path, group)
        with _explain_unreadable(path):
            file = safe_open(path, framework="np")
        with file:
            # All arrays are read once before, so that a damaged file fails here and not halfway.
            arrays = _OpenArrays(file)
            with _explain_unreadable(path):
                self._check_digest(group, arrays)
            yield arrays

    def _check_digest(self, group: str, arrays: Mapping[str, np.ndarray]) -> None:
        if self.record.digests.get(group) != digest_of(arrays):
            raise ValueError("its arrays are not those that state.json records")

    def update(self, **changes: Any) -> "Checkpoint":
        """Write a record with some changes, whole or not at all."""
        record = self.record.model_copy(update=changes)
        write_record(self.path, record)
        return Checkpoint(self.path, record)


class _OpenArrays(Mapping):
    """The arrays of an open file; each access reads one."""

    def __init__(self, file: Any):
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


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first; folders of other names are ignored."""
    numbered = (path for path in folder.glob("step-*") if path.name[len("step-") :].isdecimal())
    return sorted(numbered, key=step_of)


def latest(folder: Path) -> Path | None:
    """Return the newest complete checkpoint, if there is one."""
    return next(reversed(list_checkpoints(folder)), None)


def checkpoint_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def archive_of(checkpoint: Path, group: str) -> Path:
    """Return the file of a group of arrays."""
    return checkpoint / f"{group}.safetensors"


def recover_interrupted_replace(folder: Path) -> None:
    """Restore checkpoints whose replacement was interrupted between the two renames."""
    for backup in folder.glob(".former-*"):
        target = folder / backup.name.removeprefix(".former-")
        if not target.exists():
            # Another worker of the job may be faster.
            with suppress(FileNotFoundError):
                os.rename(backup, target)
                log.warning("checkpoint     %s was put back; its writer was killed", target)


def remove_partial_checkpoints(folder: Path) -> None:
    """Remove the parts of checkpoints, and replaced ones, that killed processes left."""
    for remains in (*folder.glob(".partial-*"), *folder.glob(".former-*")):
        # The folder may belong to another user.
        try:
            shutil.rmtree(remains)
        except OSError as error:
            log.warning("%s cannot be removed: %s: %s", remains, error.filename, error.strerror)


# Three things may be wrong, and each has its message. First damage: the file is missing, is not
# JSON, or does not match its checksum. Then another format, whose checksum is not compared, since
# it may be made in another way. Then settings that this version lacks.
def read_record(checkpoint: Path) -> Record:
    """Read the state.json of a checkpoint; raise CheckpointError if that cannot be used."""
    path = checkpoint / STATE
    with _explain_unreadable(path):
        content = path.read_bytes()
        document = json.loads(content)
        if not isinstance(document, dict):
            raise ValueError("it does not hold a JSON object")
        checksum = _CHECKSUM_LINE.search(content)
        is_intact = checksum is not None and checksum[1] == _checksum(content[: checksum.start()])
        if document.get("format") == FORMAT and not is_intact:
            raise ValueError("its last line is not the checksum of the lines above it")
    reason = (
        f"it has format {document.get('format')}, but this version of MyXTTS reads format {FORMAT}"
        " (safetensors); formats up to 6 are numpy archives"
    )
    # A setting or value that this version lacks is no damage.
    try:
        if document.get("format") == FORMAT:
            _update_settings(document)
            return Record.model_validate_json(json.dumps(document))
    except ValidationError as error:
        first = error.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    raise CheckpointError(
        f"{path} cannot be read: {reason}. Use the version of MyXTTS that wrote it."
    )


def _update_settings(document: dict[str, Any]) -> None:
    """Add the normaliser that runs had before there was one, and drop settings that were unused."""
    settings = document.get("settings")
    if isinstance(settings, dict) and isinstance(settings.get("data"), dict):
        settings["data"].setdefault("text_normaliser", "none")
    if isinstance(settings, dict) and isinstance(settings.get("vocoder"), dict):
        unused, values = other_names()["unused"].items(), settings["vocoder"].items()
        settings["vocoder"] = dict(item for item in values if item not in unused)


def write_record(checkpoint: Path, record: Record) -> None:
    """Write the state.json of a checkpoint, whole or not at all."""
    write_state_json(checkpoint, record.model_dump(mode="json"))


def write_state_json(checkpoint: Path, values: Mapping[str, Any]) -> None:
    """Write the values of a record with the format before and the checksum behind them."""
    body = files.json_bytes({"format": FORMAT, **values}).removesuffix(b"\n}") + b",\n"
    files.write_whole(checkpoint / STATE, body + b' "sha256": "%s"\n}' % _checksum(body))


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


@contextmanager
def _explain_unreadable(path: Path) -> Iterator[None]:
    """Raise a CheckpointError that names a damaged or missing file, and what to remove."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}. If a run removed it meanwhile, start the command"
            f" again. Otherwise, to go on without it, remove {path.parent}."
        ) from error


# A kill or a full disk must never leave half a checkpoint under its final name. So everything is
# written to a folder with another name, flushed to the disk, and then renamed, which happens at
# once or not at all. If a checkpoint is to be replaced, it is renamed first. A kill between the two
# renames leaves it under that name, and `recover_interrupted_replace` puts it back.
def write_checkpoint(
    target: Path,
    groups: Iterable[tuple[str, Iterable[tuple[str, np.ndarray]]]],
    record: Record,
    by: str = "",
    replace: bool = False,
) -> Checkpoint:
    """Write a checkpoint under a temporary name, flush it to the disk, rename it, and return it.

    Raises an OSError that names the file if the disk refuses, or if the checkpoint exists
    (ENOTEMPTY); then nothing is left of it, and a checkpoint that was to be replaced stays.
    One group is in memory at a time. Writers of one checkpoint at the same time differ in `by`.
    """
    temporary = files.partial_folder_of(target.with_name(target.name + by))
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
        files.fsync_folder(temporary)
        if replace and target.exists():
            _replace(target, temporary)
        else:
            os.rename(temporary, target)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    files.fsync_folder(target.parent)
    return Checkpoint(target, record)


def _replace(target: Path, temporary: Path) -> None:
    """Rename a complete checkpoint to the name of one that exists."""
    # `recover_interrupted_replace` mends a kill between the renames.
    backup = target.with_name(f".former-{target.name}")
    os.rename(target, backup)
    try:
        os.rename(temporary, target)
    except OSError:
        os.rename(backup, target)
        raise
    try:
        files.fsync_folder(target.parent)
    finally:
        shutil.rmtree(backup, ignore_errors=True)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Write arrays to the disk, as safetensors; return their digest.

    The file is the length of its header in 8 bytes, the header as JSON, and the values in C order
    without gaps: https://github.com/huggingface/safetensors#format
    """
    # The library's functions do not fit: `save` first copies all arrays (86 MB took 162 ms instead
    # of 98). `save_file` makes files that only their owner may read, and its errors do not tell a
    # full disk.
    contents = {}
    header = {}
    end = 0
    # The largest types come first, so that all values are aligned in memory.
    for name in sorted(arrays, key=lambda name: -arrays[name].itemsize):
        array = contents[name] = np.asarray(arrays[name], order="C")
        begin, end = end, end + array.nbytes
        dtype = SAFETENSORS_TYPES[str(array.dtype)]
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (begin, end)}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with files.attach_path_to_errors(path), open(path, "wb") as file:
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
    # Types such as bfloat16 have no buffers of their own.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
