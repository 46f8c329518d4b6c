"""Checkpoints: folders of numpy archives, written whole or not at all.

checkpoints/step-000500/
    model.npz  averages.npz  optimizer.npz    one array for each variable, by name
    state.json                                step, position, best so far, tables, corpus, settings
"""

import json
import logging
import math
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from myxtts.data.planned import Position
from myxtts.errors import CheckpointError
from myxtts.files import sync_folder, write_whole
from myxtts.training.state import TrainingState

FORMAT = 3

log = logging.getLogger(__name__)


class Best(NamedTuple):
    """The checkpoint with the lowest validation loss so far."""

    step: int
    loss: float


class Checkpoints:
    """The checkpoints of a run: the newest `keep`, and the best.

    Args:
        folder: made at the first save.
        keep: newest checkpoints to keep.
        about: what goes into each state.json beside step and position: tables, corpus, settings.
    """

    def __init__(self, folder: Path, keep: int, about: dict[str, Any]):
        self._folder = folder
        self._keep = keep
        self._about = about
        for partial in folder.glob(".partial-*"):  # a kill left it
            shutil.rmtree(partial)
        newest = latest(folder)
        self.best = read_best(newest) if newest else None
        if self.best is not None and not checkpoint_of(folder, self.best.step).exists():
            self.best = None  # a best that is gone is no bar to beat

    def save(self, state: TrainingState, validation_loss: float | None = None) -> Path:
        """Write the state, under a temporary name first; then drop what need not be kept."""
        if validation_loss is not None and self.improves(validation_loss):
            self.best = Best(state.step, validation_loss)
        target = checkpoint_of(self._folder, state.step)
        temporary = partial_of(target)
        temporary.mkdir(parents=True)
        for group, variables in state.variables().items():
            arrays = {name: state.replicas.parts(v)[0].numpy() for name, v in variables.items()}
            write_arrays(temporary / f"{group}.npz", arrays)
        about = {
            "format": FORMAT,
            "step": state.step,
            "position": state.position,
            "replicas": state.replicas.count,
            "best": self.best,
        }
        text = json.dumps(about | self._about, ensure_ascii=False, indent=1)
        write_whole(temporary / "state.json", text.encode())
        sync_folder(temporary)
        os.replace(temporary, target)
        sync_folder(self._folder)  # before an older one is dropped
        self._prune()
        return target

    def improves(self, validation_loss: float) -> bool:
        return math.isfinite(validation_loss) and (self.best is None or validation_loss < self.best.loss)

    def _prune(self) -> None:
        for folder in list_checkpoints(self._folder)[: -self._keep]:
            if self.best is None or step_of(folder) != self.best.step:
                os.replace(folder, partial_of(folder))  # so that no part of it passes for a checkpoint
                shutil.rmtree(partial_of(folder))


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first; folders of other names are left alone."""
    return sorted((path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdecimal()), key=step_of)


def partial_of(checkpoint: Path) -> Path:
    """The name of a checkpoint while it is not complete."""
    return checkpoint.with_name(f".partial-{checkpoint.name}")


def checkpoint_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:06d}"


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint, if there is one."""
    found = list_checkpoints(folder)
    return found[-1] if found else None


def read_best(checkpoint: Path) -> Best | None:
    """The best checkpoint up to this one."""
    best = read_about(checkpoint)["best"]
    return Best(*best) if best else None


def read_about(checkpoint: Path) -> dict[str, Any]:
    """state.json of a checkpoint.

    Raises:
        CheckpointError: it is missing, damaged or of a later format.
    """
    path = checkpoint / "state.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(about, dict):
            raise ValueError("it holds no JSON object")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}. {advice(checkpoint)}") from error
    if about.get("format") != FORMAT:
        raise CheckpointError(
            f"{checkpoint} has format {about.get('format')}, and this version reads format {FORMAT}. "
            "Use the version of MyXTTS that wrote it."
        )
    return about


def restore(checkpoint: Path, state: TrainingState) -> None:
    """Set every variable of the state, and its step and position, from a checkpoint.

    Raises:
        CheckpointError: damaged, or of another architecture; names the first difference. The state
            is then not to be used.
    """
    about = read_about(checkpoint)
    for group, variables in state.variables().items():
        restore_variables(checkpoint / f"{group}.npz", variables)
    state.step = about["step"]
    state.position, before = position_of(about), about.get("replicas", 1)
    if before != state.replicas.count:
        log.info("replicas       %d now, %d before: they share what is left of the epoch", state.replicas.count, before)
        state.position = state.position.with_other_replicas(before)


def position_of(about: dict[str, Any]) -> Position:
    epoch, step, *earlier = about["position"]
    return Position(epoch, step, *(tuple(map(tuple, one)) for one in earlier))


def restore_variables(path: Path, variables: dict) -> None:
    """Set variables from an archive that has exactly their names and shapes.

    Raises:
        CheckpointError: naming the first difference.
    """
    arrays = read_arrays(path)
    refuse_other_names(path, set(arrays), set(variables))
    for name, variable in variables.items():
        if arrays[name].shape != tuple(variable.shape):
            raise CheckpointError(
                f"{path}: '{name}' has shape {arrays[name].shape}, and the model has {tuple(variable.shape)}. "
                "Use the settings the run was started with (its config.yaml)."
            )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def refuse_other_names(path: Path, found: set[str], asked: set[str]) -> None:
    if found != asked:
        name = min(found ^ asked)
        where = "the checkpoint" if name in found else "the model"
        raise CheckpointError(
            f"{path}: '{name}' is only in {where} ({len(found)} variables there, {len(asked)} in the model). "
            "Use the settings the run was started with (its config.yaml)."
        )


def advice(checkpoint: Path) -> str:
    return f"Remove the folder {checkpoint} to use the checkpoint before it."


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """What `write_arrays` wrote; each array has a checksum.

    Raises:
        CheckpointError: it is missing or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:  # checksums first: numpy parses a header before it has read the array
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile) as error:  # RuntimeError: a flag of zip
        raise CheckpointError(f"{path} cannot be read: {error}. {advice(path.parent)}") from error


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with open(path, "wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
