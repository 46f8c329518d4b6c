"""Distances between the weights of several checkpoints, layer by layer. No TensorFlow."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.training.checkpoint_files import opened_arrays

LOW_COSINE = 0.5  # below this cosine, layers have little in common


class LayerDistance(NamedTuple):
    """The largest difference between any two checkpoints in one layer.

    Attributes:
        cosine: cosine similarity, the lowest of all pairs.
        distance: Euclidean distance relative to the larger norm, the largest of all pairs.
    """

    cosine: float
    distance: float


def layer_distances(groups: Sequence[tuple[Path, str]]) -> dict[str, LayerDistance]:
    """Return the distance of each layer, holding one variable of each checkpoint in memory at a
    time.

    A layer is the set of variables whose names share the first two parts. Integers count as equal.

    Args:
        groups: checkpoint and group of arrays; all have the same names, shapes and types.
    """
    pairs = list(combinations(range(len(groups)), 2))
    sums: dict[str, np.ndarray] = defaultdict(lambda: np.zeros((len(pairs), 4)))
    with ExitStack() as opened:
        contents = [opened.enter_context(opened_arrays(*group)) for group in groups]
        for name in contents[0]:
            sums["/".join(name.split("/")[:2])] += _pair_products(
                [arrays[name] for arrays in contents], pairs
            )
    return {layer: _layer_distance(products) for layer, products in sums.items()}


def _pair_products(arrays: Sequence[np.ndarray], pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return `_products` of each pair, float64 [pairs, 4]; zeros for integers."""
    if not np.issubdtype(arrays[0].dtype, np.floating):
        return np.zeros((len(pairs), 4))
    return np.array([_products(arrays[left], arrays[right]) for left, right in pairs])


def _products(left: np.ndarray, right: np.ndarray) -> list[float]:
    """Return the inner product, both squared norms and the squared norm of the difference."""
    x, y = left.astype(np.float64).ravel(), right.astype(np.float64).ravel()
    products = [float(x @ y), float(x @ x), float(y @ y)]
    x -= y
    return [*products, float(x @ x)]


def _layer_distance(products: np.ndarray) -> LayerDistance:
    """Return the distance by the sums of `_products`, [pairs, 4].

    Two layers of zeros have cosine 1; a layer of zeros and another layer have cosine 0.
    """
    cosines, distances = [], []
    for inner, x_squared, y_squared, squared in products.tolist():
        norms = math.sqrt(x_squared) * math.sqrt(y_squared)
        cosines.append(inner / norms if norms else float(squared == 0.0))
        distances.append(math.sqrt(squared / max(x_squared, y_squared)) if squared else 0.0)
    return LayerDistance(min(cosines), max(distances))


def layer_table(layers: Mapping[str, LayerDistance]) -> str:
    """Return a Markdown table, followed by the names of the layers with a low cosine."""
    lines = ["| layer | cosine, lowest | distance, largest |", "|---|---|---|"]
    lines += [
        f"| {layer} | {cosine:.4f} | {distance:.4f} |"
        for layer, (cosine, distance) in layers.items()
    ]
    if low := [layer for layer, (cosine, _) in layers.items() if cosine < LOW_COSINE]:
        names = ", ".join(low)
        lines += [
            "",
            f"- the inputs have little in common (cosine below {LOW_COSINE}) in {names}: try"
            " --val-data",
        ]
    return "\n".join([*lines, ""])
