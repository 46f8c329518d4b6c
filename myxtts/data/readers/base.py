"""What all readers share: their interface, the stretches of a batch, and the error for unreadable
files.
"""

from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.batch import Field
from myxtts.data.audio_file import read_pcm
from myxtts.data.audio_header import read_header
from myxtts.data.manifest import Manifest
from myxtts.data.plan_iterator import PlannedBatch
from myxtts.errors import DataError

READ_ERRORS = (tf.errors.OpError, UnicodeDecodeError)
"""What TensorFlow raises for an unreadable file: the second one where its message quotes bytes that
are not UTF-8.
"""

Waves = dict[str, tf.Tensor]

Batch = dict[str, tf.Tensor | np.ndarray]
"""Waves and totals on a device; int32 arrays in host memory."""

ReadBatches = Generator[tuple[PlannedBatch, Batch], None, None]

ReadRows = Callable[[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor | int], tf.Tensor]
"""(rows, starts, samples, padded) -> int16 [batch, padded]; a row of 0 samples is silence."""


class Reader(Protocol):
    """Stages B and C of a batch's life: reads planned batches and uploads them."""

    def read(self, planned: Iterable[PlannedBatch], device: str) -> ReadBatches:
        """Yield each planned batch as read, in order, with one pass at a time for each device.

        Closing the generator before its end also ends its threads; behind its end they may wait for
        the next pass.

        Args:
            planned: iterated once, some batches ahead.
            device: the data device, which gets all fields but those in host memory (see
                `Field.on_host`).

        Raises:
            DataError: a file cannot be read; raised at its batch, naming the utterance.
            tf.errors.ResourceExhaustedError: the device is out of memory.
        """
        ...


def with_host_fields(uploaded: Waves, planned: PlannedBatch, fields: dict[str, Field]) -> Batch:
    """Return a batch of a contract: what is on the device, and the planned arrays of the fields in
    host memory.
    """
    return uploaded | {
        name: planned.arrays[name] for name, field in fields.items() if field.on_host
    }


def wave_columns(fields: dict[str, Field]) -> tuple[str, ...]:
    """Name the planned arrays that locate the waves of a contract, one number for each row of a
    batch.
    """
    reference = (
        ("reference_row", "reference_start", "reference_samples")
        if "reference_pcm" in fields
        else ()
    )
    return ("row", "samples", *reference)


def read_waves(
    columns: dict,
    padded_samples: tf.Tensor,
    fields: dict[str, Field],
    reference_samples: int,
    read_rows: ReadRows,
) -> Waves:
    """Read the stretches of one batch, and of its references if the contract has them.

    Args:
        columns: the arrays of `wave_columns`.
        padded_samples: padded length of the utterances.
        fields: contract of the waves.
        reference_samples: padded length of the references.
    """
    starts = tf.zeros_like(columns["row"])
    waves = {"pcm": read_rows(columns["row"], starts, columns["samples"], padded_samples)}
    if "reference_pcm" in fields:
        waves["reference_pcm"] = read_rows(
            columns["reference_row"],
            columns["reference_start"],
            columns["reference_samples"],
            reference_samples,
        )
    return waves


def fixed_options() -> tf.data.Options:
    """Return options of a dataset whose depths and widths are all settings.

    They belong behind the last transformation, too, since an upload and a data service do not pass
    them on. With autotuning, closing an iterator waits up to a minute for the thread that tunes, if
    that misses its cancellation (Model::OptimizeLoop in tensorflow/core/framework/model.cc).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


def unreadable(manifest: Manifest, planned: PlannedBatch, error: Exception) -> DataError:
    """Return the error for a batch that cannot be read; it names the utterance whose file is at
    fault.
    """
    if not len(planned.rows):
        return DataError(f"a batch without utterances cannot be made: {error}.")
    rows = np.concatenate([planned.rows, planned.arrays["reference_row"][: len(planned.rows)]])
    where = f"epoch {planned.step.position.epoch + 1}, step {planned.step.position.step + 1}"
    for row in rows:
        try:
            read_pcm(manifest.paths[row], int(manifest.samples[row]))
            if manifest.native[row] and not read_header(manifest.paths[row]).native:
                raise DataError(
                    f"{manifest.paths[row]} was 16-bit mono WAV at {SAMPLE_RATE_HZ} Hz when the"
                    " manifest was made"
                )
        except DataError as reason:
            return DataError(
                f"utterance '{manifest.ids[row]}' ({where}): {reason}. Restore the file and use"
                " --resume, or start another run without it."
            )
    names = ", ".join(f"'{manifest.ids[row]}'" for row in planned.rows)
    folder = Path(manifest.paths[rows[0]]).parent
    return DataError(
        f"a batch could not be read ({where}): {error}. Its utterances, in {folder}: {names}."
    )
