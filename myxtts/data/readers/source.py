"""A dataset of elements that Python makes, and that tf.data reads ahead of under
`enable_op_determinism`, too.
"""

from collections.abc import Iterator
from threading import Lock
from typing import Any

import numpy as np
import tensorflow as tf

Element = dict[str, Any]


class _Elements:
    """The elements of one iterator after another by their numbers, each once; the iterator advances
    in order.
    """

    def __init__(self) -> None:
        self._iterator: Iterator[Element] = iter(())
        self._lock = Lock()
        self._next = 0
        self._waiting: dict[int, Element] = {}

    def replace(self, iterator: Iterator[Element]) -> None:
        """Take the elements that no one has asked for yet from another iterator."""
        with self._lock:
            self._iterator = iterator

    def take(self, number: int) -> Element:
        """Return an element."""
        with self._lock:
            while self._next <= number:
                self._waiting[self._next] = next(self._iterator)
                self._next += 1
            return self._waiting.pop(number)


class Source:
    """A dataset without end of elements that Python makes.

    It serves one pass after another, with one iterator: to make a dataset traces functions, and
    TensorFlow keeps 3.4 kB of each iterator that comes to its end, in part on purpose
    (tensorflow/core/framework/local_rendezvous.h).

    `tf.data.Dataset.from_generator` calls Python by stateful operations. Under
    `enable_op_determinism` these turn off all parallel calls and buffers of the pipeline
    (tensorflow/core/grappler/optimizers/data/make_deterministic.cc). Here the operation is
    stateless: the element depends on its number alone.

    Args:
        signature: of the elements.

    Attributes:
        dataset: the elements.
    """

    def __init__(self, signature: dict[str, tf.TensorSpec]):
        self._elements = _Elements()
        specs = signature.values()
        types = [
            np.bytes_ if spec.dtype == tf.string else spec.dtype.as_numpy_dtype for spec in specs
        ]

        def columns(number: np.ndarray) -> list:
            element = self._elements.take(int(number))
            return [*map(np.asarray, (element[name] for name in signature), types)]

        def element_of(number: tf.Tensor) -> dict[str, tf.Tensor]:
            values = tf.numpy_function(
                columns, [number], [spec.dtype for spec in specs], stateful=False
            )
            values = [
                tf.ensure_shape(value, spec.shape)
                for value, spec in zip(values, specs, strict=True)
            ]
            return dict(zip(signature, values, strict=True))

        self.dataset = tf.data.Dataset.range(tf.int64.max).map(element_of)

    def begin(self, elements: Iterator[Element]) -> None:
        """Begin a pass.

        Args:
            elements: of the pass. Behind them it must yield others without end, which tf.data reads
                ahead; the next pass begins behind these.
        """
        self._elements.replace(elements)
