"""Synthesis, vocoding and feature extraction on a device."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES
from myxtts.audio.mel import SILENCE, log_mel
from myxtts.audio.pitch import f0
from myxtts.audio.vocoder import VocoderProtocol, vocode
from myxtts.evaluation.metrics import (
    AcousticFeatures,
    CopyMetrics,
    PerceptualScores,
    copy_metrics,
    in_16_bits,
)
from myxtts.models.xtts import XTTS, SynthesisOptions
from myxtts.portable_ops import function_per_device_type
from myxtts.text.frontend import symbols_of
from myxtts.training.checkpoint_files import Record
from myxtts.training.observation import Throttle, no_throttle

BATCH_UTTERANCES = 8

_of_waves = function_per_device_type(tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.int32))
_log_mel, _f0 = _of_waves(log_mel), _of_waves(f0)


def predict_mels(
    network: XTTS,
    record: Record,
    texts: Sequence[str],
    languages: Sequence[int],
    references: Sequence[np.ndarray],
    options: SynthesisOptions,
    device: str,
    throttle: Throttle = no_throttle,
) -> list[np.ndarray]:
    """Synthesize the log-mels of texts, float32 [frames, 80] each: front end and network.

    Args:
        record: of the network's checkpoint, for its front end and vocabulary.
        languages: index of each text's language.
        references: float32 [frames, 80] each.
    """
    vocabulary = record.vocabulary
    frontend = record.settings.data.text_frontend
    tokens = [
        vocabulary.symbols.encode(symbols_of(text, vocabulary.languages[language], frontend))
        for text, language in zip(texts, languages, strict=True)
    ]
    predicted: list[np.ndarray] = []
    for rows in _batches(len(tokens)):
        throttle()
        ids, counts = _pad(tokens[rows], 0)
        mels, frames = _pad(references[rows], SILENCE)
        with tf.device(device):
            mel, lengths, _ = network.synthesize(
                ids, counts, tf.constant(languages[rows]), mels, frames, options
            )
        predicted += [
            row[:length] for row, length in zip(mel.numpy(), lengths.numpy(), strict=True)
        ]
    return predicted


def vocode_mels(
    vocoder: VocoderProtocol,
    mels: Sequence[np.ndarray],
    device: str,
    seed: tuple[int, int] = (0, 0),
    throttle: Throttle = no_throttle,
) -> list[np.ndarray]:
    """Return the waves of log-mels, float32 [frames * 256] for each [frames, 80].

    Of recorded mels, this is copy synthesis: the best that a network before the vocoder can do.
    """
    waves: list[np.ndarray] = []
    with tf.device(device):
        for mel in mels:
            throttle()
            waves += vocode(vocoder, tf.constant(mel[None]), [len(mel)], seed)
    return waves


def acoustic_features(
    waves: Sequence[np.ndarray], device: str, throttle: Throttle = no_throttle
) -> list[AcousticFeatures]:
    """Return log-mel and F0 of each wave."""
    features: list[AcousticFeatures] = []
    for rows in _batches(len(waves)):
        throttle()
        batch, samples = _pad(waves[rows], 0.0)
        with tf.device(device):
            values = [value.numpy() for value in (_log_mel(batch, samples), *_f0(batch, samples))]
        frames = samples.numpy() // HOP_SAMPLES
        features += [
            AcousticFeatures(*(value[row, :count] for value in values))
            for row, count in enumerate(frames)
        ]
    return features


def log_mels(waves: Iterator[np.ndarray], device: str) -> Iterator[np.ndarray]:
    """Yield the log-mel of each wave, float32 [frames, 80]; a batch of waves is held at a time."""
    while batch := list(islice(waves, BATCH_UTTERANCES)):
        padded, samples = _pad(batch, 0.0)
        with tf.device(device):
            mels = _log_mel(padded, samples).numpy()
        yield from (mel[: len(wave) // HOP_SAMPLES] for mel, wave in zip(mels, batch, strict=True))


def _batches(count: int) -> Iterator[slice]:
    return (slice(begin, begin + BATCH_UTTERANCES) for begin in range(0, count, BATCH_UTTERANCES))


def _pad(arrays: Sequence[np.ndarray], padding: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Return arrays [n, …] as one, [batch, longest n, …], and their lengths, int32 [batch]."""
    lengths = [len(array) for array in arrays]
    batch = np.full((len(arrays), max(lengths), *arrays[0].shape[1:]), padding, arrays[0].dtype)
    for row, array in zip(batch, arrays, strict=True):
        row[: len(array)] = array
    return tf.constant(batch), tf.constant(lengths)


class Waves(NamedTuple):
    """Waves as 16-bit files keep them, float32 [samples] each, and their features."""

    waves: list[np.ndarray]
    features: list[AcousticFeatures]


def waves_in_16_bits(
    waves: Sequence[np.ndarray], device: str, throttle: Throttle = no_throttle
) -> Waves:
    """Round waves to 16 bits, and compute their features on a device.

    Args:
        waves: float32 [samples] in [-1, 1] at 22,050 Hz; at least 385 samples.
    """
    rounded = [in_16_bits(wave) for wave in waves]
    return Waves(rounded, acoustic_features(rounded, device, throttle))


def measure_copies(
    recordings: Waves,
    copies: Sequence[np.ndarray],
    device: str,
    perceptual: PerceptualScores,
    throttle: Throttle = no_throttle,
) -> list[CopyMetrics]:
    """Measure the copy of each recording. Both are compared as 16-bit samples, as in a WAV file.

    Args:
        copies: float32 [samples] in [-1, 1] at 22,050 Hz, as long as the recordings.
        device: computes mels and F0.
        perceptual: scores that are also measured.
    """
    copied = waves_in_16_bits(copies, device, throttle)
    metrics = []
    for waves_and_features in zip(
        recordings.waves, copied.waves, recordings.features, copied.features, strict=True
    ):
        throttle()
        metrics.append(copy_metrics(*waves_and_features, perceptual))
    return metrics
