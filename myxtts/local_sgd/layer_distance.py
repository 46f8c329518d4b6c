"""How far the weights of some checkpoints are apart, layer by layer. No TensorFlow."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.training.checkpoint_files import opened_arrays

FAR = 0.5  # cosine below which layers have little in common


class LayerDistance(NamedTuple):
    """How far apart the two checkpoints are that differ most in a layer.

    Attributes:
        cosine: of the angle between them, the lowest of all pairs.
        distance: Euclidean, over the length of the longer one; the largest of all pairs.
    """

    cosine: float
    distance: float


def layer_distances(archives: Sequence[Path]) -> dict[str, LayerDistance]:
    """Of each layer of some checkpoints; holds one variable of each at a time.

    A layer is all variables whose names have the same first two parts; whole numbers count as equal.

    Args:
        archives: with the same names, shapes and types.
    """
    pairs = list(combinations(range(len(archives)), 2))
    sums = defaultdict(lambda: np.zeros((len(pairs), 4)))
    with ExitStack() as opened:
        read = [opened.enter_context(opened_arrays(path)) for path in archives]
        for name in read[0]:
            sums["/".join(name.split("/")[:2])] += _products_of_all([one[name] for one in read], pairs)
    return {layer: _apart(products) for layer, products in sums.items()}


def _products_of_all(arrays: Sequence[np.ndarray], pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """`_products` of each pair, float64 [pairs, 4]; zeros for whole numbers."""
    if not np.issubdtype(arrays[0].dtype, np.floating):
        return np.zeros((len(pairs), 4))
    return np.array([_products(arrays[left], arrays[right]) for left, right in pairs])


def _products(one: np.ndarray, other: np.ndarray) -> tuple[float, ...]:
    """Their inner product, their squared lengths and the squared length of their difference."""
    x, y = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    inner, x_squared, y_squared = x @ y, x @ x, y @ y
    x -= y
    return inner, x_squared, y_squared, x @ x


def _apart(products: np.ndarray) -> LayerDistance:
    """Of [pairs, 4] sums of `_products`. Two layers of zeros are the same; one of them alone is at a right angle."""
    cosines, distances = [], []
    for inner, x_squared, y_squared, squared in products.tolist():
        lengths = math.sqrt(x_squared) * math.sqrt(y_squared)
        cosines.append(inner / lengths if lengths else float(squared == 0.0))
        distances.append(math.sqrt(squared / max(x_squared, y_squared)) if squared else 0.0)
    return LayerDistance(min(cosines), max(distances))


def table_of_layers(layers: Mapping[str, LayerDistance]) -> str:
    """Markdown."""
    lines = ["| layer | cosine, lowest | distance, largest |", "|---|---|---|"]
    lines += [f"| {layer} | {apart.cosine:.4f} | {apart.distance:.4f} |" for layer, apart in layers.items()]
    far = [layer for layer, apart in layers.items() if apart.cosine < FAR]
    if far:
        lines += ["", f"- the parts have little in common (cosine below {FAR}) in {', '.join(far)}: try --val-data"]
    return "\n".join([*lines, ""])
