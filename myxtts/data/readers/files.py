"""Reads the corpus' own files: 16-bit WAV by TensorFlow's operations, all others by soundfile."""

import os

import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.data.audio_file import read_pcm
from myxtts.data.manifest import Manifest
from myxtts.data.readers.base import ReadRows

NO_SIZE = -2  # tf.reshape rejects it


def rows_from_files(manifest: Manifest, native_loading: bool) -> ReadRows:
    """Return what reads rows of batches from the files of a corpus.

    TensorFlow decodes 16-bit mono WAV in C++, without Python. soundfile reads the other files, or
    all of them without `native_loading`.
    """
    paths = tf.constant([os.fsencode(path) for path in manifest.paths])
    lengths = tf.constant(manifest.samples)
    native = tf.constant(manifest.native & native_loading)
    all_native = bool(np.all(manifest.native)) and native_loading

    def decode(row: tf.Tensor) -> tf.Tensor:
        wave, rate_hz = tf.audio.decode_wav(tf.io.read_file(paths[row]))
        unchanged = tf.reduce_all(tf.shape(wave) == [lengths[row], 1]) & (rate_hz == SAMPLE_RATE_HZ)
        # tf.debugging.Assert is stateful and would make reading serial under enable_op_determinism;
        # tf.reshape is not.
        wave = tf.reshape(wave, [tf.where(unchanged, lengths[row], NO_SIZE)])
        return tf.cast(wave * 32768.0, tf.int16)  # decode_wav divides by 32768: exact

    def convert(row: tf.Tensor) -> tf.Tensor:
        def read(path: bytes, samples: np.int32) -> np.ndarray:
            return read_pcm(os.fsdecode(path), int(samples))

        pcm = tf.numpy_function(read, [paths[row], lengths[row]], tf.int16, stateful=False)
        return tf.ensure_shape(pcm, [None])

    def read_row(row, start, samples, padded):
        pcm = (
            decode(row)
            if all_native
            else tf.cond(native[row], lambda: decode(row), lambda: convert(row))
        )
        return tf.pad(pcm[start : start + samples], [[0, padded - samples]])

    def read_rows(rows, starts, samples, padded):
        def read_or_silence(columns):
            row, start, count = columns
            return tf.cond(
                count > 0,
                lambda: read_row(row, start, count, padded),
                lambda: tf.zeros([padded], tf.int16),
            )

        return tf.map_fn(
            read_or_silence,
            (rows, starts, samples),
            fn_output_signature=tf.TensorSpec([None], tf.int16),
        )

    return read_rows
