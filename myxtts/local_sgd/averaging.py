"""Weighted means of checkpoints, and the layout of --sync-dir. No TensorFlow.

Only one array and the float64 sum are in memory, however many checkpoints there are.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from myxtts.errors import CheckpointError
from myxtts.training.checkpoint_files import Checkpoint, archive_of

OTHER_NETWORK = "the networks differ. Leave one of them out."


def normalised(weights: Sequence[float]) -> list[float]:
    """Return the weights divided by their sum, or equal coefficients if every weight is 0."""
    total = sum(weights)
    if not total:
        return [1 / len(weights)] * len(weights)
    return [weight / total for weight in weights]


def weighted_mean(
    groups: Sequence[tuple[Checkpoint, str]], weights: Sequence[float]
) -> Iterator[tuple[str, np.ndarray]]:
    """Average the arrays of several checkpoints by name; of integers, take the largest.

    Args:
        groups: checkpoint and group of arrays; all have the same names, shapes and types.
        weights: of each, 0 or more, in any unit.

    Yields:
        name and array, of the same type; the sum is taken in float64.

    Raises:
        CheckpointError: the groups differ, or an array is not finite; names the first such array.
    """
    coefficients = normalised(weights)
    with ExitStack() as opened:
        contents = [opened.enter_context(checkpoint.opened(group)) for checkpoint, group in groups]
        archives = [archive_of(checkpoint.path, group) for checkpoint, group in groups]
        for path, arrays in zip(archives, contents, strict=True):
            if difference := set(arrays) ^ set(contents[0]):
                name = min(difference)
                has, lacks = (path, archives[0]) if name in arrays else (archives[0], path)
                raise CheckpointError(f"'{name}' is in {has}, but not in {lacks}: {OTHER_NETWORK}")
        for name in contents[0]:
            spec = None
            total = None
            for path, arrays, coefficient in zip(archives, contents, coefficients, strict=True):
                array = arrays[name]
                spec = spec or (array.shape, array.dtype)
                if (array.shape, array.dtype) != spec:
                    raise CheckpointError(
                        f"'{name}' is {array.dtype} {array.shape} in {path}, but {spec[1]}"
                        f" {spec[0]} in {archives[0]}: {OTHER_NETWORK}"
                    )
                if np.issubdtype(array.dtype, np.floating):
                    if not np.isfinite(array).all():
                        raise CheckpointError(
                            f"'{name}' in {path} is not finite. Use an earlier checkpoint of it."
                        )
                    term = coefficient * array.astype(np.float64)
                    total = term if total is None else total + term
                else:
                    total = array if total is None else np.maximum(total, array)
            # There is at least one archive.
            assert total is not None and spec is not None
            yield name, total.astype(spec[1])


def has_pending_sync(sync_every: int, audio_s_since_sync: float) -> bool:
    """Return whether a run that has all its steps lacks the last sync, in which it was stopped."""
    return bool(sync_every) and audio_s_since_sync > 0


def sync_folders(sync_dir: Path) -> list[Path]:
    """Return the folder of each sync, by step."""
    folders = (
        path for path in sync_dir.glob("sync-*") if path.name.removeprefix("sync-").isdecimal()
    )
    return sorted(folders, key=sync_step)


def sync_step(sync_folder: Path) -> int:
    """Return the step of a sync by its folder."""
    return int(sync_folder.name.removeprefix("sync-"))


def newest_average(sync_dir: Path) -> Path | None:
    """Return the newest averaged checkpoint, if there is one."""
    averages = (path / "averaged" for path in reversed(sync_folders(sync_dir)))
    return next((path for path in averages if path.exists()), None)
