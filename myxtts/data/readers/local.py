"""Reads batches in this process by tf.data and uploads them to the data device."""

import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count, repeat

import numpy as np
import tensorflow as tf

from myxtts.batch import TEXT, Field
from myxtts.config.schema import DataConfig
from myxtts.data.manifest import Manifest
from myxtts.data.plan_iterator import PlannedBatch
from myxtts.data.readers.base import (
    READ_ERRORS,
    ReadBatches,
    ReadRows,
    fixed_options,
    read_waves,
    unreadable,
    with_host_fields,
)
from myxtts.data.readers.source import Source

COLUMNS = ("row", "samples", "reference_row", "reference_start", "reference_samples")
TOTALS = {name: field for name, field in TEXT.items() if not field.on_host}
PLANNED_SPEC = {
    **{name: tf.TensorSpec([None], tf.int32) for name in COLUMNS},
    **{name: tf.TensorSpec(field.shape, field.dtype) for name, field in TOTALS.items()},
    "padded_samples": tf.TensorSpec([], tf.int32),
}
ELEMENT_SPEC = PLANNED_SPEC | {
    # A string, since TensorFlow keeps strings on the host: it is not uploaded, and reading it waits
    # for no device.
    "batch_number": tf.TensorSpec([], tf.string)
}
SILENCE = {
    name: np.zeros([size or 1 for size in spec.shape], spec.dtype.as_numpy_dtype)
    for name, spec in PLANNED_SPEC.items()
}
"""One row of no samples."""

END = "end"  # in place of the number of a batch


class LocalReader:
    """Reads from files or from the cache, in tf.data's threads.

    Args:
        manifest: of the corpus.
        fields: contract of the waves.
        reference_samples: padded length of the references.
        data: has the depths and widths of the pipeline.
        read_rows: `rows_from_files` or `rows_from_cache`.

    Attributes:
        read_on_host: compiled function: the planned columns of a batch -> its waves.
    """

    def __init__(
        self,
        manifest: Manifest,
        fields: dict[str, Field],
        reference_samples: int,
        data: DataConfig,
        read_rows: ReadRows,
    ):
        self._manifest, self._fields = manifest, fields
        self._data = data

        def read(batch: dict) -> dict:
            passed = {
                name: batch[name] for name in (*(TOTALS.keys() & fields.keys()), "batch_number")
            }
            return passed | read_waves(
                batch, batch["padded_samples"], fields, reference_samples, read_rows
            )

        self._idle: dict[str, list[tuple[Source, Iterator[dict]]]] = {}  # by device
        # Before Python ends: later, the end of an iterator waits for ever for threads that want to
        # call Python.
        weakref.finalize(self, self._idle.clear)
        self._passes = count()
        # One trace for all passes.
        self.read_on_host = tf.function(read, input_signature=[ELEMENT_SPEC], autograph=False)

    def read(self, planned: Iterable[PlannedBatch], device: str) -> ReadBatches:
        """See `Reader.read`."""
        in_flight: deque[tuple[str, PlannedBatch]] = deque()
        of_pass = f"{next(self._passes)}:"  # begins the number of each batch
        end = f"{of_pass}{END}"

        def elements() -> Iterator[dict]:
            for number, batch in enumerate(planned):
                in_flight.append((f"{of_pass}{number}", batch))
                yield {name: batch.arrays[name] for name in PLANNED_SPEC} | {
                    "batch_number": f"{of_pass}{number}"
                }
            yield from repeat(SILENCE | {"batch_number": end})

        idle = self._idle.setdefault(device, [])
        with tf.device(
            None
        ):  # whatever the caller's is: operations of tf.data have CPU kernels only
            source, iterator = idle.pop() if idle else self._open(device)
        source.begin(elements())
        while True:
            try:
                waves = next(iterator)
            except tf.errors.ResourceExhaustedError:
                raise  # the device is out of memory: no utterance is at fault
            except READ_ERRORS as error:
                if not in_flight:
                    raise
                raise unreadable(self._manifest, in_flight[0][1], error) from error
            found = waves.pop("batch_number").numpy().decode()
            if found.endswith(END) and found != end:
                continue  # read ahead behind the end of the pass before
            if found == end and not in_flight:
                idle.append(
                    (source, iterator)
                )  # for the next pass; one that is abandoned still has batches
                return
            number, batch = in_flight.popleft()
            if found != number:
                raise RuntimeError(f"tf.data returned batch {found} in place of {number}")
            yield batch, with_host_fields(waves, batch, self._fields)

    @tf.autograph.experimental.do_not_convert  # the functions of `Source`
    def _open(self, device: str) -> tuple[Source, Iterator[dict]]:
        source = Source(ELEMENT_SPEC)
        dataset = source.dataset.map(
            self.read_on_host, num_parallel_calls=self._data.num_workers, deterministic=True
        )
        dataset = dataset.prefetch(self._data.buffer_size)
        options = fixed_options()
        options.experimental_slack = False
        options.experimental_optimization.apply_default_optimizations = (
            False  # find nothing here, and take 0.1 s
        )
        # Only options may follow the upload: any other transformation silently returns to the host.
        upload = tf.data.experimental.prefetch_to_device(
            device, buffer_size=self._data.prefetch_buffer_size
        )
        return source, iter(dataset.with_options(options).apply(upload).with_options(options))
