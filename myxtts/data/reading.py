"""Stages B and C of a batch's life: planned batches are read by tf.data and uploaded.

16-bit mono WAV at 22,050 Hz is decoded by TensorFlow's operations, every other file by soundfile.
`pcm_cache` replaces the files.
"""

import os
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import count, repeat
from threading import Lock

import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.loudness import with_loudness
from myxtts.base import tf_internals
from myxtts.base.errors import DataError
from myxtts.batch import TEXT, Batch, Field
from myxtts.config.schema import DataConfig
from myxtts.data.audio_file import MAX_RECORDING_S, WHOLE, read_header, read_pcm, read_wave
from myxtts.data.batch_plan import PlannedBatch
from myxtts.data.manifest import Manifest
from myxtts.stores import Member, member_of, read_member, read_members

# For an unreadable file TensorFlow raises the second one where its message quotes bytes that are
# not UTF-8.
READ_ERRORS = (tf.errors.OpError, UnicodeDecodeError)

ReadBatches = Generator[tuple[PlannedBatch, Batch], None, None]

ReadRows = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | int], tf.Tensor]
"""(rows, starts, samples, padded) -> int16 [batch, padded]; a row of 0 samples is silence."""


def read_waves(
    columns: dict,
    padded_samples: tf.Tensor,
    fields: dict[str, Field],
    reference_samples: int,
    read_rows: ReadRows,
) -> Batch:
    """Read the stretches of one batch, and of its references if the contract has them.

    The lengths are those with padding.
    """
    starts = tf.zeros_like(columns["row"])
    waves = {"pcm": read_rows(columns["row"], starts, columns["samples"], padded_samples)}
    if "reference_pcm" in fields:
        rows, starts, samples = (
            columns[f"reference_{name}"] for name in ("row", "start", "samples")
        )
        waves["reference_pcm"] = read_rows(rows, starts, samples, reference_samples)
    return waves


def fixed_options() -> tf.data.Options:
    """Return options of a dataset whose depths and widths are all settings.

    They also belong after the last transformation, since an upload does not pass them on. With
    autotuning, closing an iterator waits up to a minute for the thread that tunes, if that misses
    its cancellation (Model::OptimizeLoop in tensorflow/core/framework/model.cc).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


def read_row(manifest: Manifest, row: int, lufs: float | None = None) -> np.ndarray:
    """Read the wave of an utterance at a loudness, or as it is: float32 [samples] in [-1, 1].

    Raises DataError if it cannot be read.
    """
    start = int(manifest.starts[row])
    wave = read_wave(manifest.paths[row], int(manifest.samples[row]), start=start)
    if lufs is None:
        return wave
    with tf.device("/CPU:0"):
        return with_loudness(tf.constant(wave[None]), lufs)[0].numpy()


def unreadable(manifest: Manifest, planned: PlannedBatch, error: Exception) -> DataError:
    """Return the error of a batch that cannot be read, naming the utterance at fault."""
    rows = np.concatenate([planned.rows, planned.arrays["reference_row"][: len(planned.rows)]])
    where = f"epoch {planned.step.position.epoch + 1}, step {planned.step.position.step + 1}"
    for row in rows:
        try:
            start = int(manifest.starts[row])
            read_pcm(manifest.paths[row], int(manifest.samples[row]), start=start)
            if manifest.native[row] and not read_header(manifest.paths[row]).native:
                former = f"16-bit mono WAV at {SAMPLE_RATE_HZ} Hz when the manifest was made"
                raise DataError(f"{manifest.paths[row]} was {former}")
        except DataError as reason:
            return DataError(
                f"utterance '{manifest.ids[row]}' ({where}): {reason}. Restore the file and use"
                " --resume, or start another run without it."
            )
    names = ", ".join(manifest.paths[row] for row in planned.rows)
    return DataError(f"a batch could not be read ({where}): {error}. Its utterances are {names}.")


def rows_from_files(manifest: Manifest, native_loading: bool) -> ReadRows:
    """Return what reads rows of batches from files: 16-bit mono WAV without Python, if native."""
    # Whatever device is the default: tf.data reads them on the host.
    with tf.device("/CPU:0"):
        paths = tf.constant([os.fsencode(path) for path in manifest.paths])
        lengths = tf.constant(manifest.samples)
        starts = tf.constant(manifest.starts)
        native = tf.constant(manifest.native & native_loading)
    all_native = bool(np.all(manifest.native)) and native_loading

    def decode(row: tf.Tensor) -> tf.Tensor:
        wave, rate_hz = tf.audio.decode_wav(tf.io.read_file(paths[row]))
        begin = tf.cast(tf.maximum(starts[row], 0), tf.int32)
        end = begin + lengths[row]
        samples, channels = tf.unstack(tf.shape(wave))
        fits = tf.where(starts[row] == WHOLE, samples == end, samples >= end)
        unchanged = fits & (channels == 1) & (rate_hz == SAMPLE_RATE_HZ)
        # tf.debugging.Assert is stateful and would make reading serial under enable_op_determinism;
        # tf.reshape is not, and rejects a size of -2.
        wave = tf.reshape(wave[begin:end], [tf.where(unchanged, lengths[row], -2)])
        # decode_wav divides by 32768: exact.
        return tf.cast(wave * 32768.0, tf.int16)

    def convert(row: tf.Tensor) -> tf.Tensor:
        def read(path: bytes, samples: np.int32, start: np.int64) -> np.ndarray:
            return read_pcm(os.fsdecode(path), int(samples), start=int(start))

        where = paths[row], lengths[row], starts[row]
        pcm = tf.numpy_function(read, where, tf.int16, stateful=False)
        return tf.ensure_shape(pcm, [None])

    def read_row(row, start, samples, padded):
        if all_native:
            pcm = decode(row)
        else:
            pcm = tf.cond(native[row], lambda: decode(row), lambda: convert(row))
        return tf.pad(pcm[start : start + samples], [[0, padded - samples]])

    def read_rows(rows, starts, samples, padded):
        def read_or_silence(columns):
            row, start, count = columns
            return tf.cond(
                count > 0,
                lambda: read_row(row, start, count, padded),
                lambda: tf.zeros([padded], tf.int16),
            )

        wave = tf.TensorSpec([None], tf.int16)
        return tf.map_fn(read_or_silence, (rows, starts, samples), fn_output_signature=wave)

    return read_rows


def rows_from_members(
    manifest: Manifest, read: Callable[[Member], bytes] = read_member
) -> ReadRows:
    """Return what reads rows of batches from shards, the utterances of a batch at the same time."""

    def load(rows, starts, samples, padded):
        batch = np.zeros((len(rows), padded), np.int16)
        places = np.flatnonzero(samples)
        paths = [manifest.paths[row] for row in rows[places]]
        contents = read_members([member for member in map(member_of, paths) if member], read)
        for place, path, content in zip(places, paths, contents, strict=True):
            row, begin, count = rows[place], starts[place], samples[place]
            where = int(manifest.samples[row]), MAX_RECORDING_S, int(manifest.starts[row])
            batch[place, :count] = read_pcm(path, *where, content)[begin : begin + count]
        return batch

    return rows_by_numpy(load)


def rows_by_numpy(load: Callable[..., np.ndarray]) -> ReadRows:
    """Return what reads rows of batches by a function of arrays, which returns int16 [B, S]."""

    def read_rows(rows, starts, samples, padded):
        arguments = [rows, starts, samples, padded]
        batch = tf.numpy_function(load, arguments, tf.int16, stateful=False)
        return tf.ensure_shape(batch, [None, None])

    return read_rows


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
# tf.data reads ahead after the end of a pass, where it gets a row of no samples.
SILENCE = {
    name: np.zeros([size or 1 for size in spec.shape], spec.dtype.as_numpy_dtype)
    for name, spec in PLANNED_SPEC.items()
}
END = b"end"


class Reader:
    """Stages B and C of a batch's life: reads planned batches in tf.data's threads, and uploads.

    `read_on_host` is the compiled function from the planned columns of a batch to its waves.
    """

    def __init__(
        self,
        manifest: Manifest,
        fields: dict[str, Field],
        reference_samples: int,
        data: DataConfig,
        read_rows: ReadRows,
    ):
        self._manifest = manifest
        self._fields = fields
        self._data = data

        def read(batch: dict) -> dict:
            passed = {name: batch[name] for name in (TOTALS.keys() & fields.keys())}
            passed["batch_number"] = batch["batch_number"]
            return passed | read_waves(
                batch, batch["padded_samples"], fields, reference_samples, read_rows
            )

        self._idle: dict[str, list[tuple[Source, Iterator[dict]]]] = {}
        # Idle iterators are closed before the interpreter shuts down; afterwards closing deadlocks
        # on the GIL.
        weakref.finalize(self, self._idle.clear)
        self._passes = count()
        # One trace for all passes.
        self.read_on_host = tf.function(read, input_signature=[ELEMENT_SPEC], autograph=False)

    def read(self, planned: Iterable[PlannedBatch], device: str) -> ReadBatches:
        """Yield each planned batch as read, in order, with one pass at a time for each device.

        `planned` is iterated some batches ahead. The data device gets all fields but those in host
        memory (see `Field.on_host`). Closing the generator early stops its threads; after a normal
        end they idle until the next pass. Raises DataError at the batch of a file that cannot be
        read, and ResourceExhaustedError if the device is out of memory.
        """
        in_flight: deque[tuple[bytes, PlannedBatch]] = deque()
        # Numbers of batches begin with that of their pass: what tf.data read ahead for the previous
        # pass is recognised and dropped.
        pass_prefix = b"%d:" % next(self._passes)
        end = pass_prefix + END

        def elements() -> Iterator[dict]:
            for number, batch in enumerate(planned):
                name = b"%b%d" % (pass_prefix, number)
                in_flight.append((name, batch))
                yield {key: batch.arrays[key] for key in PLANNED_SPEC} | {"batch_number": name}
            yield from repeat(SILENCE | {"batch_number": end})

        idle = self._idle.setdefault(device, [])
        # Operations of tf.data have CPU kernels only, and would read their arguments from a GPU.
        with tf.device("/CPU:0"):
            source, iterator = idle.pop() if idle else self._open(device)
        source.begin(elements())
        while True:
            try:
                waves = next(iterator)
            except tf.errors.ResourceExhaustedError:
                # The device is out of memory: no utterance is at fault.
                raise
            except READ_ERRORS as error:
                if not in_flight:
                    raise
                raise unreadable(self._manifest, in_flight[0][1], error) from error
            found = waves.pop("batch_number").numpy()
            if found.endswith(END) and found != end:
                # Read ahead after the end of the previous pass.
                continue
            if found == end and not in_flight:
                # Kept for the next pass. An abandoned iterator still has batches, and is not.
                idle.append((source, iterator))
                return
            number, batch = in_flight.popleft()
            assert found == number
            on_host = [name for name, field in self._fields.items() if field.on_host]
            yield batch, waves | {name: batch.arrays[name] for name in on_host}

    # AutoGraph would convert the functions of `Source`, which are traced as they are.
    @tf.autograph.experimental.do_not_convert
    def _open(self, device: str) -> tuple[Source, Iterator[dict]]:
        source = Source(ELEMENT_SPEC)
        dataset = source.dataset.map(
            self.read_on_host, num_parallel_calls=self._data.num_workers, deterministic=True
        )
        dataset = dataset.prefetch(self._data.buffer_size)
        options = fixed_options()
        options.experimental_slack = False
        # The optimizations find nothing here, and take 0.1 s.
        options.experimental_optimization.apply_default_optimizations = False
        # Only options may follow the upload: any other transformation silently returns to the host.
        upload = tf.data.experimental.prefetch_to_device(
            device, buffer_size=self._data.prefetch_buffer_size
        )
        batches = iter(dataset.with_options(options).apply(upload).with_options(options))
        tf_internals.reuse_freed_memory()
        return source, batches
