"""Weighted means of checkpoints, one variable at a time: memory for one of them and its sum, however many there are."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from myxtts.errors import CheckpointError
from myxtts.training.checkpoint_files import opened_arrays


def shares_of(weights: Sequence[float]) -> list[float]:
    """The weights as shares of 1; equal ones where all are 0."""
    total = sum(weights)
    return [weight / total if total else 1 / len(weights) for weight in weights]


def mean_of(archives: Sequence[Path], weights: Sequence[float]) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of some .npz archives by name: the mean of fractions, the largest of whole numbers.

    Args:
        archives: with the same names, shapes and types.
        weights: of each, 0 or more, in any unit.

    Yields:
        name and array, in the type that it has in the archives; summed in float64.

    Raises:
        CheckpointError: naming the first difference, or what is not finite.
    """
    shares = shares_of(weights)
    with ExitStack() as opened:
        read = [opened.enter_context(opened_arrays(path)) for path in archives]
        for path, arrays in zip(archives, read, strict=True):
            if difference := set(arrays) ^ set(read[0]):
                name = min(difference)
                has, lacks = (path, archives[0]) if name in arrays else (archives[0], path)
                raise CheckpointError(f"'{name}' is in {has}, but not in {lacks}: {OTHER_NETWORK}")
        for name in read[0]:
            form, total = None, None
            for path, arrays, share in zip(archives, read, shares, strict=True):
                array = arrays[name]
                form = form or (array.shape, array.dtype)
                if (array.shape, array.dtype) != form:
                    raise CheckpointError(
                        f"'{name}' is {array.dtype} {array.shape} in {path}, but {form[1]} {form[0]} in {archives[0]}: "
                        f"{OTHER_NETWORK}"
                    )
                if np.issubdtype(array.dtype, np.floating):
                    if not np.isfinite(array).all():
                        raise CheckpointError(f"'{name}' in {path} is not finite. Use an earlier checkpoint of it.")
                    part = share * array.astype(np.float64)
                    total = part if total is None else total + part
                else:
                    total = array if total is None else np.maximum(total, array)
            yield name, total.astype(form[1])


OTHER_NETWORK = "they are not of the same network. Leave one of them out."
