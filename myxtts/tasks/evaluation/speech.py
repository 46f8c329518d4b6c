"""Synthesis, vocoding, features and speakers of speech, on a device."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import soxr
import tensorflow as tf

from myxtts.audio.audio_file import to_pcm
from myxtts.audio.format import HOP_SAMPLES, sample_rate_hz
from myxtts.audio.mel import log_mel
from myxtts.audio.pitch import f0
from myxtts.audio.vocoder import VocoderProtocol, vocode
from myxtts.base.portable_ops import function_per_device_type
from myxtts.corpus.manifest import Manifest
from myxtts.corpus.sound import read_row
from myxtts.tasks.base import Throttle, no_throttle
from myxtts.tasks.evaluation import metrics
from myxtts.tasks.evaluation.held_out import MeasuredCorpus, Utterance, evenly_spaced
from myxtts.tasks.evaluation.metrics import AcousticFeatures
from myxtts.tasks.evaluation.table import Metrics

BATCH_UTTERANCES = 8
RECORDINGS_PER_SPEAKER = 20  # at most; their mean is the speaker's centroid
COEFFICIENTS = 19
GE2E_RATE_HZ = 16_000
GE2E_LEVEL_DB = -30.0

_of_waves = function_per_device_type(tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.int32))
_log_mel, _f0 = _of_waves(log_mel), _of_waves(f0)


def vocode_mels(
    vocoder: VocoderProtocol,
    mels: Sequence[np.ndarray],
    device: str,
    seed: tuple[int, int] = (0, 0),
    throttle: Throttle = no_throttle,
    recorded: bool = False,
) -> list[np.ndarray]:
    """Return the waves of log-mels, float32 [frames * 256] for each [frames, 80]; see `vocode`."""
    waves: list[np.ndarray] = []
    with tf.device(device):
        for mel in mels:
            throttle()
            waves += vocode(vocoder, tf.constant(mel[None]), [len(mel)], seed, recorded)
    return waves


def acoustic_features(
    waves: Sequence[np.ndarray], device: str, throttle: Throttle = no_throttle
) -> list[AcousticFeatures]:
    """Return log-mel and F0 of each wave, float32 [samples], of at least 385."""
    features: list[AcousticFeatures] = []
    for rows in batches_of(len(waves)):
        throttle()
        batch, samples = pad_rows(waves[rows], 0.0)
        with tf.device(device):
            mel = _log_mel(batch, samples).numpy()
            f0_hz, voiced = (value.numpy() for value in _f0(batch, samples))
        for row, wave in enumerate(waves[rows]):
            real = slice(len(wave) // HOP_SAMPLES)
            of_wave = AcousticFeatures(wave, mel[row, real], f0_hz[row, real], voiced[row, real])
            features.append(of_wave)
    return features


def features_in_16_bits(
    waves: Sequence[np.ndarray], device: str, throttle: Throttle = no_throttle
) -> list[AcousticFeatures]:
    """Return the features of waves, rounded as a WAV file keeps them."""
    rounded = [to_pcm(wave).astype(np.float32) / 32768.0 for wave in waves]
    return acoustic_features(rounded, device, throttle)


def batches_of(count: int) -> Iterator[slice]:
    return (slice(begin, begin + BATCH_UTTERANCES) for begin in range(0, count, BATCH_UTTERANCES))


def pad_rows(arrays: Sequence[np.ndarray], padding: float) -> tuple[tf.Tensor, tf.Tensor]:
    """Return arrays [n, …] as one, [batch, longest n, …], and their lengths, int32 [batch]."""
    lengths = [len(array) for array in arrays]
    batch = np.full((len(arrays), max(lengths), *arrays[0].shape[1:]), padding, arrays[0].dtype)
    for row, array in zip(batch, arrays, strict=True):
        row[: len(array)] = array
    return tf.constant(batch), tf.constant(lengths)


def speaker_embeddings(features: Iterable[AcousticFeatures]) -> np.ndarray:
    """Return an embedding of the voice of each wave, [U, D].

    By Resemblyzer (GE2E, Wan et al. 2018) if it is installed, D = 256 and of unit length; or else
    mean and deviation over frames of the cepstra 1 to 19, D = 38.
    """
    embeddings = []
    for of_wave in features:
        if metrics.is_installed("speaker_cosine"):
            embeddings.append(_ge2e_embedding(metrics.trimmed(of_wave).wave))
            continue
        coefficients = metrics.mel_cepstrum(of_wave.mel, 1, COEFFICIENTS)
        embeddings.append(np.concatenate([coefficients.mean(axis=0), coefficients.std(axis=0)]))
    return np.stack(embeddings)


def _ge2e_embedding(wave: np.ndarray) -> np.ndarray:
    from resemblyzer import audio

    at_16_khz = soxr.resample(wave, sample_rate_hz(), GE2E_RATE_HZ)
    # The encoder was trained at this level. A silent wave has no level.
    if at_16_khz.any():
        at_16_khz = audio.normalize_volume(at_16_khz, GE2E_LEVEL_DB, increase_only=True)
    return _ge2e_encoder().embed_utterance(at_16_khz)


@cache
def _ge2e_encoder() -> Any:
    from resemblyzer import VoiceEncoder

    return VoiceEncoder("cpu", verbose=False)


def similarities(
    embeddings: np.ndarray, speakers: np.ndarray, classified: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the speakers, int [S], and the similarity of voices to each, [C, D] -> [C, S].

    That is the cosine to the mean of a speaker's embeddings, [U, D] and int [U], if these are by
    Resemblyzer; or else minus the distance.
    """
    names = np.unique(speakers)
    centroids = np.stack([embeddings[speakers == name].mean(axis=0) for name in names])
    if metrics.is_installed("speaker_cosine"):
        norms = np.linalg.norm(classified, axis=1)[:, None] * np.linalg.norm(centroids, axis=1)
        return names, classified @ centroids.T / norms
    # Cepstra of low order vary more than those of high order, and would decide alone.
    scale = np.maximum(embeddings.std(axis=0), 1e-6)
    return names, -np.linalg.norm(centroids / scale - (classified / scale)[:, None], axis=2)


# A voice is judged by who it sounds like. First each speaker gets a centroid: the mean embedding of
# recordings of training, or of the measured corpus for speakers who were not trained on. Then each
# synthesized utterance is compared with all centroids. With Resemblyzer, the mean cosine to its own
# speaker is reported; always, how often its own speaker is the nearest, separately for speakers
# seen in training and others. Utterances whose speaker has no other recording have nothing to be
# compared with.
def speaker_metrics(
    corpus: MeasuredCorpus,
    utterances: Sequence[Utterance],
    features: Mapping[str, Sequence[AcousticFeatures]],
    device: str,
) -> tuple[Metrics, str]:
    """Return how near utterances are to their speaker, and to whom they are nearest; and a note.

    The features of the utterances are by column.
    """
    assert corpus.training is not None
    training, measured = corpus.training.manifest, corpus.manifest
    is_unseen = ~np.isin(measured.speaker, training.speaker)
    # An utterance must not be in the centroid that it is compared with.
    is_unseen &= ~np.isin(measured.ids, [utterance.id for utterance in utterances])
    recordings = _of_each_speaker(training, np.arange(len(training)))
    recordings += _of_each_speaker(measured, np.flatnonzero(is_unseen))
    speakers = np.array([manifest.speaker[row] for manifest, row in recordings])
    count = len(np.unique(speakers))
    by_network = metrics.is_installed("speaker_cosine")
    if count < 2 and not by_network:
        return {}, "speaker accuracy is left out: there is only one speaker"
    parts, lufs = [], corpus.config.data.loudness
    # Batch by batch: the recordings of 2,000 speakers would take 20 GB.
    for rows in batches_of(len(recordings)):
        waves = [read_row(manifest, row, lufs) for manifest, row in recordings[rows]]
        parts.append(speaker_embeddings(acoustic_features(waves, device)))
    embeddings = np.concatenate(parts)
    targets = np.array([utterance.speaker for utterance in utterances])
    is_known, is_seen = np.isin(targets, speakers), np.isin(targets, training.speaker)
    if not is_known.any():
        reason = "there are no other recordings of the utterances' speakers"
        return {}, f"speaker accuracy is left out: {reason}"
    correct, cosine = {}, {}
    for column, of_column in features.items():
        names, similarity = similarities(embeddings, speakers, speaker_embeddings(of_column))
        correct[column] = names[similarity.argmax(axis=1)] == targets
        own = np.searchsorted(names, targets[is_known])
        cosine[column] = float(similarity[is_known, own].mean())
    values: Metrics = {"speaker_cosine": dict(cosine)} if by_network else {}
    groups = []
    for group, members in (("seen", is_seen), ("unseen", ~is_seen & is_known)):
        if members.any():
            groups.append(f"{members.sum()} utterances of {group} speakers")
        if members.any() and count > 1:
            accuracy = {name: float(of[members].mean()) for name, of in correct.items()}
            values[f"speaker_accuracy_{group}"] = dict(accuracy)
    judge = "Resemblyzer" if by_network else "cepstra, without Resemblyzer"
    note = f"speakers are distinguished by {judge}, {count} of them (chance {1 / count:.1%}), for"
    return values, f"{note} {' and '.join(groups)}"


def _of_each_speaker(manifest: Manifest, rows: np.ndarray) -> list[tuple[Manifest, int]]:
    """Return at most RECORDINGS_PER_SPEAKER of the rows of every speaker."""
    selected: list[tuple[Manifest, int]] = []
    for speaker in np.unique(manifest.speaker[rows]):
        own = rows[manifest.speaker[rows] == speaker]
        selected += [(manifest, int(row)) for row in evenly_spaced(own, RECORDINGS_PER_SPEAKER)]
    return selected
