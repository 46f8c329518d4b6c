"""The batch contracts: names, types, dimensions, padding and units.

A batch is a dictionary of tensors. Reading yields waves on the data device (*_INPUTS); producing
turns them into features (*_FEATURES), which are handed to the model device. Fields of int32 stay in
host memory, where TensorFlow's functions take and return them. Dimensions with the same name are
equal within a batch. All batches of a bucket have one shape: the last batch of an epoch is filled
up with empty rows, whose `samples`, `frames` and `token_count` are 0.
"""

from math import prod

import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, MEL_BANDS
from myxtts.devicefeed.contract import Field

# Of a segment of VOCODER_FEATURES, on each side: a network sees them, but is not judged by them,
# since they lack neighbours.
CONTEXT_FRAMES = 4


TEXT = {
    "tokens": Field("int32", ("batch", "tokens")),  # symbol ids, padded with 0
    "token_count": Field("int32", ("batch",)),  # without padding
    "language": Field("int32", ("batch",)),  # row of the vocabulary's languages
    "seed": Field("int32", (2,)),  # of this batch, for stateless random operations
    "step_frames": Field("float32", ()),  # mel frames of all batches and replicas, without padding
    "step_tokens": Field("float32", ()),  # likewise
}

ASR_INPUTS = TEXT | {
    "pcm": Field("int16", ("batch", "samples")),  # wave at 22,050 Hz, padded with 0
    "samples": Field("int32", ("batch",)),  # without padding
}

VOCODER_INPUTS = {name: ASR_INPUTS[name] for name in ("seed", "step_frames", "pcm", "samples")}

TTS_INPUTS = ASR_INPUTS | {
    "reference_pcm": Field("int16", ("batch", "reference_samples")),  # another utterance
    "reference_samples": Field("int32", ("batch",)),
}

ASR_FEATURES = TEXT | {
    "mel": Field("float32", ("batch", "frames", MEL_BANDS)),  # log-mel, padded with log(1e-5)
    "frames": Field("int32", ("batch",)),  # without padding
}

TTS_FEATURES = ASR_FEATURES | {
    "f0_hz": Field("float32", ("batch", "frames")),  # 0 where unvoiced or padded
    "reference": Field("float32", ("batch", "reference_frames", MEL_BANDS)),  # log-mel
    "reference_frames": Field("int32", ("batch",)),  # without padding
}

VOCODER_FEATURES = {
    **{name: TEXT[name] for name in ("seed", "step_frames")},
    "mel": Field("float32", ("batch", "segment_frames", MEL_BANDS)),  # silence outside
    "f0_hz": Field("float32", ("batch", "segment_frames")),  # 0 where unvoiced or outside
    "pulse_phasor": Field("float32", ("batch", "segment_frames", 2)),  # 0 where unvoiced
    "wave": Field("float32", ("batch", "segment_samples")),  # in [-1, 1]; 0 outside
    "frames": Field("int32", ("batch",)),  # of the whole utterance that the segment stands for
}

TAUGHT_TTS_INPUTS = TTS_INPUTS | {
    "frames": Field("int32", ("batch",)),  # of the utterance, whatever text a teacher speaks
    "utterance_tokens": Field("int32", ("batch",)),
}

TAUGHT_TTS_FEATURES = TTS_FEATURES | {
    **{name: TAUGHT_TTS_INPUTS[name] for name in ("frames", "utterance_tokens")},
    "path": Field("int64", ("batch", "frames")),  # the token of each frame; -1 for padding
}

TAUGHT_VOCODER_FEATURES = VOCODER_FEATURES | {"target_mel": VOCODER_FEATURES["mel"]}


def empty_batch(fields: dict[str, Field]) -> dict[str, tf.Tensor]:
    """Return a batch with one empty row."""
    sizes = {"batch": 1, "tokens": 8, "frames": 8, "reference_frames": 8}
    sizes |= {"segment_frames": 16, "segment_samples": 16 * HOP_SAMPLES}
    batch = {name: tf.zeros(field.sized(sizes), field.dtype) for name, field in fields.items()}
    # Losses are divided by them.
    return batch | dict.fromkeys({"step_frames", "step_tokens"} & {*fields}, tf.constant(1.0))


def first_rows(batch: dict, fields: dict[str, Field], count: int) -> dict:
    """Return the first rows of a batch of a contract."""
    by_row = {name for name, field in fields.items() if field.dims[:1] == ("batch",)}
    return batch | {name: batch[name][:count] for name in batch if name in by_row}


def batch_bytes(fields: dict[str, Field], sizes: dict[str, int]) -> int:
    """Return the bytes of a batch of a contract, given the size of each named dimension."""
    counts = {name: prod(field.sized(sizes)) for name, field in fields.items()}
    return sum(counts[name] * tf.dtypes.as_dtype(fields[name].dtype).size for name in fields)
