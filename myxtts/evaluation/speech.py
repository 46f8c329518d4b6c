"""Synthesis, vocoding, features and speakers of speech, on a device."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice

import numpy as np
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES
from myxtts.audio.mel import SILENCE, log_mel
from myxtts.audio.pitch import f0
from myxtts.audio.vocoder import VocoderProtocol, vocode
from myxtts.data.manifest import Manifest
from myxtts.evaluation.held_out import Utterance, evenly_spaced, read_row
from myxtts.evaluation.metrics import AcousticFeatures, Waves, in_16_bits, mel_cepstrum
from myxtts.evaluation.table import Metrics
from myxtts.models.xtts import XTTS, SynthesisOptions
from myxtts.portable_ops import function_per_device_type
from myxtts.text.frontend import symbols_of
from myxtts.training.checkpoint_files import Record
from myxtts.training.observation import Throttle, no_throttle

BATCH_UTTERANCES = 8
# The centroid of a speaker is the mean of 20 recordings at most.
RECORDINGS_PER_SPEAKER = 20
COEFFICIENTS = 19

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


def waves_in_16_bits(
    waves: Sequence[np.ndarray], device: str, throttle: Throttle = no_throttle
) -> Waves:
    """Round waves as a WAV file keeps them, and compute their features on a device.

    Args:
        waves: float32 [samples] in [-1, 1] at 22,050 Hz; at least 385 samples.
    """
    rounded = [in_16_bits(wave) for wave in waves]
    return Waves(rounded, acoustic_features(rounded, device, throttle))


def speaker_embedding(log_mel: np.ndarray) -> np.ndarray:
    """Return the mean and standard deviation over frames of cepstra 1 to 19: [T, 80] -> [38]."""
    coefficients = mel_cepstrum(log_mel, 1, COEFFICIENTS)
    return np.concatenate([coefficients.mean(axis=0), coefficients.std(axis=0)])


class SpeakerClassifier:
    """Classifies speech by the nearest centroid of its speakers' recordings.

    Args:
        embeddings: [U, 38], of recordings.
        speakers: int [U], speaker of each recording.
    """

    def __init__(self, embeddings: np.ndarray, speakers: np.ndarray):
        # Cepstra of low order vary more than those of high order, and would decide alone.
        self._scale = np.maximum(embeddings.std(axis=0), 1e-6)
        self._speakers = np.unique(speakers)
        centroids = [embeddings[speakers == speaker].mean(axis=0) for speaker in self._speakers]
        self._centroids = np.stack(centroids) / self._scale

    def predict(self, log_mel: np.ndarray) -> int:
        embedding = speaker_embedding(log_mel) / self._scale
        distances = np.linalg.norm(self._centroids - embedding, axis=1)
        return int(self._speakers[distances.argmin()])

    def accuracy(self, log_mels: Sequence[np.ndarray], speakers: Sequence[int]) -> float:
        """Return the fraction of utterances whose speaker is predicted."""
        pairs = zip(log_mels, speakers, strict=True)
        return float(np.mean([self.predict(log_mel) == speaker for log_mel, speaker in pairs]))


def speaker_accuracy(
    training: Manifest,
    measured: Manifest,
    utterances: Sequence[Utterance],
    features: Mapping[str, Sequence[AcousticFeatures]],
    device: str,
) -> tuple[Metrics, str]:
    """Return the fraction of utterances that are classified as their speaker, and a note.

    Args:
        training: has the recordings of the speakers seen in training.
        measured: has the recordings of the other speakers; those of `utterances` are left out.
        features: of `utterances` by column, with the column "recorded".
    """
    is_unseen = ~np.isin(measured.speaker, training.speaker)
    # An utterance must not be in the centroid that it is compared with.
    is_unseen &= ~np.isin(measured.ids, [utterance.id for utterance in utterances])
    seen_rows = rows_of_each_speaker(training, np.arange(len(training)), RECORDINGS_PER_SPEAKER)
    unseen_rows = rows_of_each_speaker(measured, np.flatnonzero(is_unseen), RECORDINGS_PER_SPEAKER)
    unseen_speakers = measured.speaker[unseen_rows]
    speakers = np.concatenate([training.speaker[seen_rows], unseen_speakers])
    count = len(np.unique(speakers))
    if count < 2:
        return {}, "speaker accuracy is left out: there is only one speaker"
    # One after the other: the recordings of 2,000 speakers would take 20 GB.
    waves = chain(
        (read_row(training, row) for row in seen_rows.tolist()),
        (read_row(measured, row) for row in unseen_rows.tolist()),
    )
    embeddings = np.stack([*map(speaker_embedding, log_mels(waves, device))])
    classifier = SpeakerClassifier(embeddings, speakers)
    metrics: Metrics = {}
    groups = []
    for group, members in (("seen", training.speaker), ("unseen", unseen_speakers)):
        rows = [row for row, utterance in enumerate(utterances) if utterance.speaker in members]
        if not rows:
            continue
        targets = [utterances[row].speaker for row in rows]
        accuracy: dict[str, float | None] = {
            column: classifier.accuracy([of_column[row].mel for row in rows], targets)
            for column, of_column in features.items()
        }
        recorded = accuracy.pop("recorded")
        groups.append(
            f"{len(rows)} utterances of {group} speakers ({recorded:.0%} of their recordings)"
        )
        metrics[f"speaker_accuracy_{group}"] = accuracy
    if not groups:
        note = (
            "speaker accuracy is left out: there are no other recordings of the utterances'"
            " speakers"
        )
        return {}, note
    note = (
        f"speaker accuracy is among {count} speakers (chance {1 / count:.1%}), for"
        f" {' and '.join(groups)}"
    )
    return metrics, note


def rows_of_each_speaker(manifest: Manifest, rows: np.ndarray, count: int) -> np.ndarray:
    """Return at most `count` of the rows of every speaker, int [rows]."""
    speakers = manifest.speaker[rows]
    selected = [evenly_spaced(rows[speakers == speaker], count) for speaker in np.unique(speakers)]
    return np.concatenate([np.zeros(0, int), *selected])
