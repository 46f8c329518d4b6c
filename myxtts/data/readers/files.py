"""Stages B and C of a batch's life: read on the host, upload to the data device."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.batch import TEXT, Field
from myxtts.data.audio_file import read_pcm
from myxtts.data.audio_header import read_header
from myxtts.data.manifest import Manifest
from myxtts.data.plan_iterator import PlannedBatch
from myxtts.errors import DataError

ROWS = ("row", "samples", "reference_row", "reference_start", "reference_samples")
PLANNED_SPEC = {
    **{name: tf.TensorSpec([None], tf.int32) for name in ROWS},
    **{name: tf.TensorSpec(field.shape, field.dtype) for name, field in TEXT.items()},
    "padded_samples": tf.TensorSpec([], tf.int32),
}

# (rows, starts, samples, padded) -> int16 [batch, padded]; a row of 0 samples is silence.
ReadRows = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]


def wave_batches(
    planned: Callable[[], Iterable[PlannedBatch]],
    read_rows: ReadRows,
    reference_samples: int,
    num_workers: int,
    buffer_size: int,
    device: str,
    prefetch_buffer_size: int,
    fields: dict[str, Field],
) -> tf.data.Dataset:
    """Dataset of waves on a device, one element for each planned batch, in their order.

    Args:
        planned: gives the batches anew at each call.
        read_rows: see `rows_from_files` and `rows_from_cache`.
        reference_samples: padded length of the references.
        num_workers: batches read at the same time.
        buffer_size: batches kept ready on the host.
        device: where they are uploaded to.
        prefetch_buffer_size: batches kept ready there (3 is triple buffering).
        fields: contract of the waves; references are read where it has them.
    """

    def read(batch: dict) -> dict:
        starts = tf.zeros_like(batch["row"])
        waves = {name: batch[name] for name in fields if name in batch}
        waves["pcm"] = read_rows(batch["row"], starts, batch["samples"], batch["padded_samples"])
        if "reference_pcm" in fields:
            waves["reference_pcm"] = read_rows(
                batch["reference_row"], batch["reference_start"], batch["reference_samples"], reference_samples
            )
        return waves

    dataset = tf.data.Dataset.from_generator(lambda: (p.arrays for p in planned()), output_signature=PLANNED_SPEC)
    dataset = dataset.map(read, num_parallel_calls=num_workers, deterministic=True).prefetch(buffer_size)
    options = tf.data.Options()
    options.autotune.enabled = False  # every depth and width is a setting
    options.experimental_slack = False
    # Last, as it must be: a transformation behind it would return to the host in silence.
    return dataset.with_options(options).apply(
        tf.data.experimental.prefetch_to_device(device, buffer_size=prefetch_buffer_size)
    )


def rows_from_files(manifest: Manifest, native_loading: bool) -> ReadRows:
    """Reader of the corpus' own files.

    16-bit WAV files are decoded by TensorFlow in C++, without Python; the others, or all where
    `native_loading` is off, by soundfile.
    """
    paths = tf.constant([os.fsencode(path) for path in manifest.paths])
    lengths = tf.constant(manifest.samples)
    native = tf.constant(manifest.native & native_loading)
    all_native = bool(np.all(manifest.native)) and native_loading

    def decode(row: tf.Tensor) -> tf.Tensor:
        wave, rate_hz = tf.audio.decode_wav(tf.io.read_file(paths[row]))
        as_planned = tf.reduce_all(tf.shape(wave) == [lengths[row], 1]) & (rate_hz == SAMPLE_RATE_HZ)
        with tf.control_dependencies([tf.debugging.Assert(as_planned, [paths[row]])]):
            return tf.cast(wave[:, 0] * 32768.0, tf.int16)  # decode_wav divides by 32768: exact

    def convert(row: tf.Tensor) -> tf.Tensor:
        pcm = tf.numpy_function(lambda path, n: read_pcm(os.fsdecode(path), n), [paths[row], lengths[row]], tf.int16)
        return tf.ensure_shape(pcm, [None])

    def read_row(row, start, samples, padded):
        pcm = decode(row) if all_native else tf.cond(native[row], lambda: decode(row), lambda: convert(row))
        return tf.pad(pcm[start : start + samples], [[0, padded - samples]])

    def read_rows(rows, starts, samples, padded):
        def read_or_silence(columns):
            row, start, count = columns
            return tf.cond(count > 0, lambda: read_row(row, start, count, padded), lambda: tf.zeros([padded], tf.int16))

        return tf.map_fn(read_or_silence, (rows, starts, samples), fn_output_signature=tf.TensorSpec([None], tf.int16))

    return read_rows


def rows_from_cache(manifest: Manifest, pcm: np.ndarray) -> ReadRows:
    """Reader of the memory-mapped corpus that `pcm_cache.open_cache` gives: int16 [all samples]."""
    offsets = np.concatenate([[0], np.cumsum(manifest.samples, dtype=np.int64)])

    def copy(rows, starts, samples, padded):
        batch = np.zeros((len(rows), padded), np.int16)
        # One memory copy a row; an index array would be 8 x the data.
        for i, begin in enumerate(offsets[rows] + starts):
            batch[i, : samples[i]] = pcm[begin : begin + samples[i]]
        return batch

    def read_rows(rows, starts, samples, padded):
        return tf.ensure_shape(tf.numpy_function(copy, [rows, starts, samples, padded], tf.int16), [None, None])

    return read_rows


def name_culprit(manifest: Manifest, planned: PlannedBatch, error: Exception) -> DataError:
    """The error of a batch that could not be read, naming the utterance at fault."""
    if not len(planned.rows):
        return DataError(f"a batch without an utterance could not be made: {error}.")
    rows = np.concatenate([planned.rows, planned.arrays["reference_row"][: len(planned.rows)]])
    where = f"epoch {planned.step.position.epoch + 1}, step {planned.step.position.step + 1}"
    for row in rows:
        try:
            read_pcm(manifest.paths[row], int(manifest.samples[row]))
            if manifest.native[row] and not read_header(manifest.paths[row]).native:
                raise DataError(
                    f"{manifest.paths[row]} was 16-bit mono WAV at {SAMPLE_RATE_HZ} Hz when the manifest was made"
                )
        except DataError as found:
            return DataError(
                f"utterance '{manifest.ids[row]}' ({where}): {found}. Put the file back as it was, then --resume; "
                "or start another run without it."
            )
    names = ", ".join(f"'{manifest.ids[row]}'" for row in planned.rows)
    path = Path(manifest.paths[rows[0]]).parent
    return DataError(f"a batch could not be read ({where}): {error}. Its utterances, in {path}: {names}.")
