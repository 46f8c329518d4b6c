"""Waves from texts and from mels, and what is heard in them, in batches on a device."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES
from myxtts.audio.griffin_lim import ITERATIONS, griffin_lim_waves
from myxtts.audio.mel import SILENCE, log_mel
from myxtts.audio.pitch import f0
from myxtts.evaluation.acoustic_metrics import AcousticFeatures
from myxtts.models.xtts import XTTS, SynthesisOptions
from myxtts.text.frontend import symbols_of
from myxtts.training.select_checkpoint import vocabulary_of

BATCH_UTTERANCES = 8

_log_mel = tf.function(log_mel, input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.int32)])
_f0 = tf.function(f0, input_signature=[tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.int32)])


def speak(
    network: XTTS,
    metadata: dict[str, Any],
    texts: Sequence[str],
    languages: Sequence[int],
    references: Sequence[np.ndarray],
    options: SynthesisOptions,
    device: str,
    iterations: int = ITERATIONS,
) -> list[np.ndarray]:
    """What the network says of texts: front end, network and Griffin-Lim.

    Args:
        about: state.json of the network's checkpoint, for its front end and tables.
        languages: index of each text's language.
        references: float32 [frames, 80] of each.
        iterations: of Griffin-Lim.

    Returns:
        float32 [samples] for each text.
    """
    vocabulary, frontend = vocabulary_of(metadata), metadata["settings"]["data"]["text_frontend"]
    spoken = zip(texts, languages, strict=True)
    tokens = [vocabulary.symbols.encode(symbols_of(text, vocabulary.languages[row], frontend)) for text, row in spoken]
    waves: list[np.ndarray] = []
    for part in _parts(len(tokens)):
        ids, counts = _padded(tokens[part], 0)
        mels, frames = _padded(references[part], SILENCE)
        with tf.device(device):
            mel, lengths, _ = network.synthesize(ids, counts, tf.constant(languages[part]), mels, frames, options)
            waves += griffin_lim_waves(mel, lengths, iterations=iterations)
    return waves


def copy_synthesis(mels: Sequence[np.ndarray], device: str) -> list[np.ndarray]:
    """The waves that Griffin-Lim makes of recorded mels: the best that a model before it could reach."""
    waves: list[np.ndarray] = []
    for part in _parts(len(mels)):
        mel, frames = _padded(mels[part], SILENCE)
        with tf.device(device):
            waves += griffin_lim_waves(mel, frames)
    return waves


def transcribe_waves(waves: Sequence[np.ndarray], device: str) -> list[AcousticFeatures]:
    """Log-mel and F0 of waves."""
    sounds: list[AcousticFeatures] = []
    for part in _parts(len(waves)):
        batch, samples = _padded(waves[part], 0.0)
        with tf.device(device):
            heard = [value.numpy() for value in (_log_mel(batch, samples), *_f0(batch, samples))]
        lengths = samples.numpy() // HOP_SAMPLES
        sounds += [AcousticFeatures(*(value[row, :length] for value in heard)) for row, length in enumerate(lengths)]
    return sounds


def _parts(count: int) -> Iterator[slice]:
    return (slice(begin, begin + BATCH_UTTERANCES) for begin in range(0, count, BATCH_UTTERANCES))


def _padded(arrays: Sequence[np.ndarray], padding: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Arrays [n, …] as one [batch, longest n, …] and int32 [batch], each n."""
    lengths = [len(array) for array in arrays]
    batch = np.full((len(arrays), max(lengths), *arrays[0].shape[1:]), padding, arrays[0].dtype)
    for to, array in zip(batch, arrays, strict=True):
        to[: len(array)] = array
    return tf.constant(batch), tf.constant(lengths)
