"""Who is heard: the nearest centroid of MFCC statistics. Free of TensorFlow."""

from collections.abc import Sequence

import numpy as np

from myxtts.evaluation.acoustic_metrics import mel_cepstrum

COEFFICIENTS = 19


def voice_print(log_mel: np.ndarray) -> np.ndarray:
    """Mean and standard deviation over frames of the mel_cepstrum 1 to 19: [T, 80] -> [38]."""
    coefficients = mel_cepstrum(log_mel, 1, COEFFICIENTS)
    return np.concatenate([coefficients.mean(axis=0), coefficients.std(axis=0)])


class NearestSpeaker:
    """Names the speaker whose natural speech is nearest.

    Args:
        prints: [U, 38], voice prints of natural utterances.
        speakers: int [U], who spoke them.
    """

    def __init__(self, prints: np.ndarray, speakers: np.ndarray):
        self._spread = np.maximum(prints.std(axis=0), 1e-6)
        self.speakers = np.unique(speakers)
        centroids = np.stack([prints[speakers == speaker].mean(axis=0) for speaker in self.speakers])
        self._centroids = centroids / self._spread

    def __call__(self, log_mel: np.ndarray) -> int:
        away = np.linalg.norm(self._centroids - voice_print(log_mel) / self._spread, axis=1)
        return int(self.speakers[away.argmin()])

    def accuracy(self, log_mels: Sequence[np.ndarray], speakers: Sequence[int]) -> float:
        """Share of the utterances whose speaker is named."""
        return float(np.mean([self(mel) == speaker for mel, speaker in zip(log_mels, speakers, strict=True)]))
