"""Batches from the host onto a data device, by tf.data.

What comes in are tags and arrays that Python makes, in order. A stateless source numbers them, so
that tf.data's threads may ask for several at once; they compute one batch of each, and
`prefetch_to_device` uploads it ahead of its consumer. What goes out are the tags with their batches
on the device, in the same order, in the thread of the consumer.
"""

import weakref
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from itertools import count, repeat
from threading import Lock
from typing import Any

import numpy as np
import tensorflow as tf

from .contract import Batch
from .internals import reuse_freed_memory

TaggedBatches = Generator[tuple[Any, Batch], None, None]
"""Batches on a device, each with its tag."""

NUMBER, END = "batch_number", b"end"
# For an unreadable file TensorFlow raises the second one where its message quotes bytes that are
# not UTF-8.
READ_ERRORS = (tf.errors.OpError, UnicodeDecodeError)


class Source:
    """A dataset without end of elements that Python makes.

    It serves one pass after another, with one iterator: to make a dataset traces functions, and
    TensorFlow keeps 3.4 kB of each iterator that comes to its end, in part on purpose
    (tensorflow/core/framework/local_rendezvous.h).

    `tf.data.Dataset.from_generator` calls Python by stateful operations. Under
    `enable_op_determinism` these turn off all parallel calls and buffers of the pipeline
    (tensorflow/core/grappler/optimizers/data/make_deterministic.cc). Here the operation is
    stateless: the element depends on its number alone.
    """

    def __init__(self, signature: dict[str, tf.TensorSpec]):
        self._signature = signature
        self._iterator: Iterator[dict] = iter(())
        # Numbers are asked for in any order, by the threads of tf.data: `_waiting` has the elements
        # below `_next` that were not asked for yet.
        self._lock = Lock()
        self._next = 0
        self._waiting: dict[int, dict] = {}
        self.dataset = tf.data.Dataset.range(tf.int64.max).map(self._element)

    def begin(self, elements: Iterator[dict]) -> None:
        """Begin a pass, whose elements endless others follow: tf.data reads ahead."""
        with self._lock:
            self._iterator = elements

    def _element(self, number: tf.Tensor) -> dict[str, tf.Tensor]:
        types = [spec.dtype for spec in self._signature.values()]
        columns = tf.numpy_function(self._columns, [number], types, stateful=False)
        return {
            name: tf.ensure_shape(column, spec.shape)
            for (name, spec), column in zip(self._signature.items(), columns, strict=True)
        }

    def _columns(self, number: np.ndarray) -> list[np.ndarray]:
        """Return the arrays of an element, whose number is asked for once."""
        with self._lock:
            while self._next <= number:
                self._waiting[self._next] = next(self._iterator)
                self._next += 1
            element = self._waiting.pop(int(number))
        return [np.asarray(element[name]) for name in self._signature]


class Uploader:
    """Computes batches on the host in tf.data's threads, and uploads them to a device.

        uploader = Uploader(spec, read, workers=4, host_depth=8, device_depth=3)
        for tag, batch in uploader.read(items, "/GPU:0"):

    Args:
        spec: types and shapes of the arrays of an item.
        read: a function from such tensors to a batch; it runs on the host, and is traced once.
        on_host: arrays of an item that go into the batch as they are, and stay on the host.
        workers: items that are computed at the same time.
        host_depth, device_depth: batches that wait on the host and on the device.
        explain: returns what is raised for the error of a tag.
    """

    def __init__(
        self,
        spec: dict[str, tf.TensorSpec],
        read: Callable[[dict], dict],
        *,
        workers: int,
        host_depth: int,
        device_depth: int,
        on_host: Collection[str] = (),
        explain: Callable[[Any, Exception], Exception] = lambda tag, error: error,
    ):
        # A string, since TensorFlow keeps strings on the host: it is not uploaded, and reading it
        # waits for no device.
        self._spec = spec | {NUMBER: tf.TensorSpec([], tf.string)}
        self._workers, self._depths = workers, (host_depth, device_depth)
        self._on_host, self._explain = on_host, explain
        # tf.data reads ahead after the end of a pass, where it gets arrays of zeros.
        self._nothing = {
            name: np.zeros([size or 1 for size in each.shape], each.dtype.as_numpy_dtype)
            for name, each in spec.items()
        }

        def read_numbered(item: dict) -> dict:
            return read({name: item[name] for name in spec}) | {NUMBER: item[NUMBER]}

        self._idle: dict[str, list[tuple[Source, Iterator[dict]]]] = {}
        # Idle iterators are closed before the interpreter shuts down; afterwards closing deadlocks
        # on the GIL.
        weakref.finalize(self, self._idle.clear)
        self._passes = count()
        # One trace for all passes.
        self.read_on_host = tf.function(
            read_numbered, input_signature=[self._spec], autograph=False
        )

    def read(self, items: Iterable[tuple[Any, dict]], device: str) -> TaggedBatches:
        """Yield each tag with its batch, in order, with one pass at a time for each device.

        `items` is iterated some batches ahead. Closing the generator early stops its threads; after
        a normal end they idle until the next pass. Raises the explained error of a batch in its
        place, and ResourceExhaustedError if the device is out of memory.
        """
        in_flight: deque[tuple[bytes, Any, dict]] = deque()
        # Numbers of batches begin with that of their pass: what tf.data read ahead for the previous
        # pass is recognised and dropped.
        pass_prefix = b"%d:" % next(self._passes)
        end = pass_prefix + END

        def elements() -> Iterator[dict]:
            for number, (tag, arrays) in enumerate(items):
                name = b"%b%d" % (pass_prefix, number)
                in_flight.append((name, tag, arrays))
                yield {key: arrays[key] for key in self._nothing} | {NUMBER: name}
            yield from repeat(self._nothing | {NUMBER: end})

        idle = self._idle.setdefault(device, [])
        # Operations of tf.data have CPU kernels only, and would read their arguments from a GPU.
        with tf.device("/CPU:0"):
            source, iterator = idle.pop() if idle else self._open(device)
        source.begin(elements())
        while True:
            try:
                batch = next(iterator)
            except READ_ERRORS as error:
                # No item is at fault if the device is out of memory.
                if not in_flight or isinstance(error, tf.errors.ResourceExhaustedError):
                    raise
                raise self._explain(in_flight[0][1], error) from error
            found = batch.pop(NUMBER).numpy()
            if found.endswith(END) and found != end:
                # Read ahead after the end of the previous pass.
                continue
            if found == end and not in_flight:
                # Kept for the next pass. An abandoned iterator still has batches, and is not.
                idle.append((source, iterator))
                return
            number, tag, arrays = in_flight.popleft()
            assert found == number
            yield tag, batch | {name: arrays[name] for name in self._on_host}

    # AutoGraph would convert the functions of `Source`, which are traced as they are.
    @tf.autograph.experimental.do_not_convert
    def _open(self, device: str) -> tuple[Source, Iterator[dict]]:
        host_depth, device_depth = self._depths
        source = Source(self._spec)
        dataset = source.dataset.map(
            self.read_on_host, num_parallel_calls=self._workers, deterministic=True
        )
        dataset = dataset.prefetch(host_depth)
        options = tf.data.Options()
        # With it, closing an iterator waits up to a minute for the thread that tunes, if that
        # misses its cancellation (Model::OptimizeLoop in tensorflow/core/framework/model.cc).
        options.autotune.enabled = False
        options.experimental_slack = False
        # The optimizations find nothing here, and take 0.1 s.
        options.experimental_optimization.apply_default_optimizations = False
        # Only options may follow the upload, which passes none on: any other transformation
        # silently returns to the host.
        upload = tf.data.experimental.prefetch_to_device(device, buffer_size=device_depth)
        batches = iter(dataset.with_options(options).apply(upload).with_options(options))
        reuse_freed_memory()
        return source, batches
