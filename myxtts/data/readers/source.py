"""A dataset of elements that Python makes, and that tf.data reads ahead of under `enable_op_determinism`, too."""

from collections.abc import Iterable
from threading import Lock
from typing import Any

import numpy as np
import tensorflow as tf

Element = dict[str, Any]


class _Elements:
    """The elements of an iterator by their numbers, each once; the iterator advances in order."""

    def __init__(self, elements: Iterable[Element]):
        self._iterator, self._lock = iter(elements), Lock()
        self._next = 0
        self._waiting: dict[int, Element | None] = {}

    def take(self, number: int) -> Element | None:
        """Return an element, or None behind the last one."""
        with self._lock:
            while self._next <= number:
                self._waiting[self._next] = next(self._iterator, None)
                self._next += 1
            return self._waiting.pop(number)


class Source:
    """A dataset of elements that Python makes. It serves one pass after another, since to make one traces functions.

    `tf.data.Dataset.from_generator` calls Python by stateful operations. Under `enable_op_determinism` these turn off
    all parallel calls and buffers of the pipeline (tensorflow/core/grappler/optimizers/data/make_deterministic.cc).
    Here the operation is stateless: the element depends on its number alone.

    Args:
        signature: of the elements.

    Attributes:
        dataset: of the elements of the pass that `begin` began last.
    """

    def __init__(self, signature: dict[str, tf.TensorSpec]):
        self._elements = _Elements(())
        specs = signature.values()
        types = [np.bytes_ if spec.dtype == tf.string else spec.dtype.as_numpy_dtype for spec in specs]

        def columns(number: np.ndarray) -> list:
            element = self._elements.take(int(number))
            if element is None:
                shapes = ([size or 0 for size in spec.shape] for spec in specs)
                return [True, *map(np.zeros, shapes, types)]
            return [False, *map(np.asarray, (element[name] for name in signature), types)]

        def element_of(number: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            dtypes = [tf.bool, *(spec.dtype for spec in specs)]
            is_end, *values = tf.numpy_function(columns, [number], dtypes, stateful=False)
            values = [tf.ensure_shape(value, spec.shape) for value, spec in zip(values, specs, strict=True)]
            return tf.ensure_shape(is_end, []), dict(zip(signature, values, strict=True))

        numbered = tf.data.Dataset.range(tf.int64.max).map(element_of)
        self.dataset = numbered.take_while(lambda is_end, _: ~is_end).map(lambda _, element: element)

    def begin(self, elements: Iterable[Element]) -> None:
        """Begin a pass over other elements; the iterator of the pass before must have come to its end."""
        self._elements = _Elements(elements)
