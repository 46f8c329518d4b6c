"""The weighted mean of the weights of several runs."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from myxtts.base.errors import CheckpointError
from myxtts.checkpoints import files as checkpoint_files
from myxtts.checkpoints.files import Checkpoint
from myxtts.checkpoints.trained_run import TrainedRun

Group = tuple[Checkpoint, str]
"""A checkpoint, and the name of a group of its arrays."""


def normalised(weights: Sequence[float]) -> list[float]:
    """Return the weights divided by their sum, or equal coefficients if every weight is 0."""
    total = sum(weights)
    if not total:
        return [1 / len(weights)] * len(weights)
    return [weight / total for weight in weights]


# All archives are opened, and must have the same names. Then the arrays are taken name by name:
# each is checked and added in float64, so a single array of each and the sum are in memory.
def weighted_mean(
    groups: Sequence[Group], weights: Sequence[float]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the weighted mean of each array of several checkpoints; of integers, the largest.

    The weights are 0 or more, in any unit. Raises CheckpointError, which names the first array that
    differs in shape or type, or is not finite.
    """
    coefficients = normalised(weights)
    with ExitStack() as opened:
        contents = [opened.enter_context(checkpoint.opened(group)) for checkpoint, group in groups]
        archives = [checkpoint_files.archive_of(item.path, group) for item, group in groups]
        for path, arrays in zip(archives, contents, strict=True):
            if difference := set(arrays) ^ set(contents[0]):
                raise _other_network(min(difference), archives[0], path)
        for name in contents[0]:
            spec = None
            total = None
            for path, arrays, coefficient in zip(archives, contents, coefficients, strict=True):
                array = arrays[name]
                spec = spec or (array.shape, array.dtype)
                if (array.shape, array.dtype) != spec:
                    raise _other_network(name, archives[0], path)
                if not np.issubdtype(array.dtype, np.floating):
                    total = array if total is None else np.maximum(total, array)
                    continue
                if not np.isfinite(array).all():
                    raise CheckpointError(
                        f"'{name}' in {path} is not finite. Use an earlier checkpoint of it."
                    )
                term = coefficient * array.astype(np.float64)
                total = term if total is None else total + term
            # There is at least one archive.
            assert total is not None and spec is not None
            yield name, total.astype(spec[1])


def _other_network(name: str, first: Path, other: Path) -> CheckpointError:
    return CheckpointError(
        f"'{name}' differs between {first} and {other}, or is in one of them only: the networks"
        " differ. Leave one of them out."
    )


def weights_group(source: TrainedRun) -> Group:
    """Return the weights that inference uses."""
    return source.checkpoint, source.record.weights_group
