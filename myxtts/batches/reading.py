"""Stages B and C of a batch's life: reading its waves, and uploading them.

What comes in are the arrays of planned batches, which name the rows of the manifest. The threads of
tf.data read the waves of several batches at the same time: from files, from shards (members of
archives) or from the decoded corpus of `pcm_cache`. Then tf.data uploads each batch to the data
device, ahead of its consumer. What goes out are batches on the data device with their plan, in the
order of the plan, in the thread of the feed (see `pipeline`).

TensorFlow's operations decode 16-bit mono WAV of the run's rate, and soundfile all other files.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial

import numpy as np
import tensorflow as tf

from myxtts.audio.audio_file import MAX_RECORDING_S, WHOLE, read_pcm
from myxtts.audio.format import sample_rate_hz
from myxtts.audio.sound_header import read_header
from myxtts.base.errors import DataError
from myxtts.base.members import Member, member_of, read_member, read_members
from myxtts.batches.contract import TEXT
from myxtts.batches.plan import PlannedBatch
from myxtts.config.schema import DataConfig
from myxtts.corpus.manifest import Manifest
from myxtts.devicefeed.contract import Batch, Field
from myxtts.devicefeed.upload import Uploader

ReadBatches = Generator[tuple[PlannedBatch, Batch], None, None]

ReadRows = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | int], tf.Tensor]
"""(rows, starts, samples, padded) -> int16 [batch, padded], in samples.

It reads a stretch of each row of the manifest. A row of 0 samples is silence.
"""


def read_waves(
    columns: dict,
    padded_samples: tf.Tensor,
    fields: dict[str, Field],
    reference_samples: int,
    read_rows: ReadRows,
) -> Batch:
    """Read the stretches of one batch, and of its references if the contract has them.

    `padded_samples` and `reference_samples` are the lengths with padding.
    """
    starts = tf.zeros_like(columns["row"])
    waves = {"pcm": read_rows(columns["row"], starts, columns["samples"], padded_samples)}
    if "reference_pcm" in fields:
        rows, starts, samples = (
            columns[f"reference_{name}"] for name in ("row", "start", "samples")
        )
        waves["reference_pcm"] = read_rows(rows, starts, samples, reference_samples)
    return waves


# An error of tf.data says that a batch failed, but not at which utterance. So every utterance of
# the batch is read again, here in Python, with its references, and the first that fails is named.
# If all can be read by now, the message names all of them.
def unreadable(manifest: Manifest, planned: PlannedBatch, error: Exception) -> DataError:
    """Return the error of a batch that cannot be read, naming the utterance at fault."""
    rows = np.concatenate([planned.rows, planned.arrays["reference_row"][: len(planned.rows)]])
    where = f"epoch {planned.step.position.epoch + 1}, step {planned.step.position.step + 1}"
    for row in rows:
        try:
            start = int(manifest.starts[row])
            read_pcm(manifest.paths[row], int(manifest.samples[row]), start=start)
            if manifest.native[row] and not read_header(manifest.paths[row]).native:
                former = f"16-bit mono WAV at {sample_rate_hz()} Hz when the manifest was made"
                raise DataError(f"{manifest.paths[row]} was {former}")
        except DataError as reason:
            return DataError(
                f"utterance '{manifest.ids[row]}' ({where}): {reason}. Restore the file and use"
                " --resume, or start another run without it."
            )
    names = ", ".join(manifest.paths[row] for row in planned.rows)
    return DataError(f"a batch could not be read ({where}): {error}. Its utterances are {names}.")


# This function runs once, on the main thread, and makes constants of the manifest's columns. The
# functions within are traced once into the graph of tf.data. For each row of a batch that graph
# looks up the path, decodes the file without Python (`decode`) or with it (`convert`), cuts out the
# stretch and pads it. It decides row by row, unless all files can be decoded without Python.
def rows_from_files(manifest: Manifest, native_loading: bool) -> ReadRows:
    """Return a reader of rows from files, which reads 16-bit mono WAV without Python if native."""
    # tf.data reads the constants on the host, whatever device is the default.
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
        unchanged = fits & (channels == 1) & (rate_hz == sample_rate_hz())
        # A file that has changed must not pass. tf.reshape rejects it by a size of -2. It is
        # stateless, while tf.debugging.Assert would make reading serial under
        # enable_op_determinism.
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
    """Return a reader of rows from shards, which reads the utterances of a batch together."""

    def waves_of(rows: np.ndarray) -> Iterator[np.ndarray]:
        paths = [manifest.paths[row] for row in rows]
        contents = read_members([member for member in map(member_of, paths) if member], read)
        for row, path, content in zip(rows, paths, contents, strict=True):
            length, start = int(manifest.samples[row]), int(manifest.starts[row])
            yield read_pcm(path, length, MAX_RECORDING_S, start, content)

    return rows_by_numpy(waves_of)


def rows_by_numpy(waves_of: Callable[[np.ndarray], Iterable[np.ndarray]]) -> ReadRows:
    """Return a reader of rows that takes stretches of the waves, int16, of rows of a manifest."""

    def load(rows, starts, samples, padded):
        batch = np.zeros((len(rows), padded), np.int16)
        # A row of no samples names no utterance.
        places = np.flatnonzero(samples)
        # One copy per row; an index array would take 8 times the memory of the data.
        for place, wave in zip(places, waves_of(rows[places]), strict=True):
            start, count = starts[place], samples[place]
            batch[place, :count] = wave[start : start + count]
        return batch

    def read_rows(rows, starts, samples, padded):
        arguments = [rows, starts, samples, padded]
        batch = tf.numpy_function(load, arguments, tf.int16, stateful=False)
        return tf.ensure_shape(batch, [None, None])

    return read_rows


# tf.data gets columns with an entry for each row of a planned batch, and the totals by which losses
# are divided. The text and the seed stay on the host and do not pass through tf.data.
COLUMNS = ("row", "samples", "reference_row", "reference_start", "reference_samples")
TOTALS = {name: field for name, field in TEXT.items() if not field.on_host}
PLANNED_SPEC = {
    **{name: tf.TensorSpec([None], tf.int32) for name in COLUMNS},
    **{name: tf.TensorSpec(field.shape, field.dtype) for name, field in TOTALS.items()},
    "padded_samples": tf.TensorSpec([], tf.int32),
}


class Reader:
    """Stages B and C of a batch's life: reads planned batches in tf.data's threads, and uploads.

        reader = Reader(manifest, fields, reference_samples, data, read_rows)
        for planned, batch in reader.read(planned_batches(...), "/GPU:0"):

    The data device gets all fields but those in host memory (see `Field.on_host`). Raises DataError
    at the batch of a file that cannot be read, and ResourceExhaustedError if the device is out of
    memory.
    """

    def __init__(
        self,
        manifest: Manifest,
        fields: dict[str, Field],
        reference_samples: int,
        data: DataConfig,
        read_rows: ReadRows,
    ):
        def read(batch: dict) -> dict:
            passed = {name: batch[name] for name in (TOTALS.keys() & fields.keys())}
            padded = batch["padded_samples"]
            return passed | read_waves(batch, padded, fields, reference_samples, read_rows)

        self.uploader = Uploader(
            PLANNED_SPEC,
            read,
            workers=data.num_workers,
            host_depth=data.buffer_size,
            device_depth=data.prefetch_buffer_size,
            on_host=[name for name, field in fields.items() if field.on_host],
            explain=partial(unreadable, manifest),
        )

    def read(self, planned: Iterable[PlannedBatch], device: str) -> ReadBatches:
        """Yield each planned batch as read; see `Uploader.read`."""
        return self.uploader.read(((batch, batch.arrays) for batch in planned), device)
