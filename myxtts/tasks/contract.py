"""What several tasks take from a batch of features."""

import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, mel_bands
from myxtts.batches.contract import TEXT
from myxtts.devicefeed.contract import Field

ASR_FEATURES = TEXT | {
    "mel": Field("float32", ("batch", "frames", mel_bands)),  # log-mel, padded with log(1e-5)
    "frames": Field("int32", ("batch",)),  # without padding
}


def empty_batch(fields: dict[str, Field]) -> dict[str, tf.Tensor]:
    """Return a batch with one empty row."""
    sizes = {"batch": 1, "tokens": 8, "frames": 8, "reference_frames": 8}
    sizes |= {"segment_frames": 16, "segment_samples": 16 * HOP_SAMPLES}
    batch = {name: tf.zeros(field.sized(sizes), field.dtype) for name, field in fields.items()}
    # Losses are divided by these two, which must not be 0.
    return batch | dict.fromkeys({"step_frames", "step_tokens"} & {*fields}, tf.constant(1.0))


def first_rows(batch: dict, fields: dict[str, Field], count: int) -> dict:
    """Return the first rows of a batch of a contract."""
    by_row = {name for name, field in fields.items() if field.dims[:1] == ("batch",)}
    return batch | {name: batch[name][:count] for name in batch if name in by_row}
