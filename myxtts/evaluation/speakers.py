"""Whether speech is of its speaker, by the nearest centroid of cepstral statistics."""

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from myxtts.data.manifest import Manifest
from myxtts.evaluation.held_out import Utterance, evenly_spaced, read_row
from myxtts.evaluation.metrics import AcousticFeatures, mel_cepstrum
from myxtts.evaluation.speech import log_mels
from myxtts.evaluation.table import Metrics

# The centroid of a speaker is the mean of 20 recordings at most.
RECORDINGS_PER_SPEAKER = 20
COEFFICIENTS = 19


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
