"""Speaker classification by the nearest centroid of cepstral statistics. No TensorFlow."""

from collections.abc import Sequence

import numpy as np

from myxtts.evaluation.acoustic_metrics import mel_cepstrum

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
        centroids = np.stack(
            [embeddings[speakers == speaker].mean(axis=0) for speaker in self._speakers]
        )
        self._centroids = centroids / self._scale

    def predict(self, log_mel: np.ndarray) -> int:
        distances = np.linalg.norm(
            self._centroids - speaker_embedding(log_mel) / self._scale, axis=1
        )
        return int(self._speakers[distances.argmin()])

    def accuracy(self, log_mels: Sequence[np.ndarray], speakers: Sequence[int]) -> float:
        """Return the fraction of utterances whose speaker is predicted."""
        pairs = zip(log_mels, speakers, strict=True)
        return float(np.mean([self.predict(log_mel) == speaker for log_mel, speaker in pairs]))
