"""The batch contracts: names, types, dimensions, padding and units.

A batch is a dictionary of tensors. The plan gives its text (TEXT), reading yields waves on the data
device (*_INPUTS), and producing turns them into features (*_FEATURES of the tasks), which are
handed over to the model device. The thread of a feed checks its first batch against both contracts.

Fields of int32 stay in host memory, where TensorFlow's functions take and return them. Dimensions
with the same name are equal within a batch. All batches of a bucket have one shape: the last batch
of an epoch is filled up with empty rows, whose `samples`, `frames` and `token_count` are 0.
"""

from math import prod

import tensorflow as tf

from myxtts.devicefeed.contract import Field

TEXT = {
    "tokens": Field("int32", ("batch", "tokens")),  # symbol ids, padded with 0
    "token_count": Field("int32", ("batch",)),  # without padding
    "language": Field("int32", ("batch",)),  # row of the vocabulary's languages
    "seed": Field("int32", (2,)),  # of this batch, for stateless random operations
    "step_frames": Field("float32", ()),  # mel frames of all batches and replicas, without padding
    "step_tokens": Field("float32", ()),  # tokens of all batches and replicas, without padding
}

# Recognition hears the wave. A vocoder needs no text. Speech synthesis also hears a reference,
# another utterance of the speaker.
ASR_INPUTS = TEXT | {
    "pcm": Field("int16", ("batch", "samples")),  # wave at the sample rate, padded with 0
    "samples": Field("int32", ("batch",)),  # without padding
}

VOCODER_INPUTS = {name: ASR_INPUTS[name] for name in ("seed", "step_frames", "pcm", "samples")}

TTS_INPUTS = ASR_INPUTS | {
    "reference_pcm": Field("int16", ("batch", "reference_samples")),  # another utterance
    "reference_samples": Field("int32", ("batch",)),
}

# A teacher may speak other texts than the utterances have. Losses still count each row as its
# utterance, so these lengths travel along.
TAUGHT_TTS_INPUTS = TTS_INPUTS | {
    "frames": Field("int32", ("batch",)),  # of the utterance, whatever text a teacher speaks
    "utterance_tokens": Field("int32", ("batch",)),
}


def batch_bytes(fields: dict[str, Field], sizes: dict[str, int]) -> int:
    """Return the bytes of a batch of a contract, given the size of each named dimension."""
    counts = {name: prod(field.sized(sizes)) for name, field in fields.items()}
    return sum(counts[name] * tf.dtypes.as_dtype(fields[name].dtype).size for name in fields)
