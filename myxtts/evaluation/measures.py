"""How far one utterance is from another: spectrum, pitch, voicing and duration. Free of TensorFlow."""

from collections.abc import Sequence
from dataclasses import dataclass

import librosa
import numpy as np

CEPSTRA = 13
DECIBELS = 10.0 * np.sqrt(2.0) / np.log(10.0)
DURATION_BOUNDS = 0.95, 1.05


@dataclass(frozen=True, eq=False)
class Sound:
    """What is measured on a wave. T = its mel frames.

    Attributes:
        mel: float32 [T, 80], log-mel.
        f0_hz: float32 [T], 0 where unvoiced.
        voiced: bool [T].
    """

    mel: np.ndarray
    f0_hz: np.ndarray
    voiced: np.ndarray

    @property
    def f0_where_voiced(self) -> np.ndarray:
        """float32 [T], NaN where unvoiced."""
        return np.where(self.voiced, self.f0_hz, np.nan)


@dataclass(frozen=True, eq=False)
class Comparison:
    """One spoken utterance against its recording, along the warping path of P pairs of frames.

    Attributes:
        distortion_db: mean mel-cepstral distortion of the pairs.
        log_f0_errors: float [pairs voiced in both], natural logarithm of the spoken F0 over the recorded one.
        voicing_differs: bool [P].
        duration_ratio: spoken frames over recorded frames.
    """

    distortion_db: float
    log_f0_errors: np.ndarray
    voicing_differs: np.ndarray
    duration_ratio: float


def cepstra(log_mel: np.ndarray, first: int = 1, last: int = CEPSTRA) -> np.ndarray:
    """Mel-cepstral coefficients first to last of log-mels: [T, bands] -> [T, last - first + 1].

    They are the c of log|H| = c0 + Σ c_m cos(mω), on which the constant DECIBELS makes decibels: 2/bands times the
    sums that a DCT-II takes, or √(2/bands) times an orthonormal one. Over all coefficients the distortion is then
    the root mean square of the difference of two spectra in dB.
    """
    bands = log_mel.shape[-1]
    angle = np.pi / bands * (np.arange(bands) + 0.5)
    return log_mel.astype(np.float64) @ np.cos(angle[:, None] * np.arange(first, last + 1)) * (2.0 / bands)


def warping_path(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pairs of frames by dynamic time warping: [T, D], [U, D] -> int [P, 2], from (0, 0) to (T - 1, U - 1)."""
    _, path = librosa.sequence.dtw(X=x.T, Y=y.T, metric="euclidean")
    return path[::-1]


def compare(recorded: Sound, spoken: Sound) -> Comparison:
    """Mel-cepstral distortion (Kubichek 1993, without c0), F0 and voicing along the path that it makes least."""
    x, y = cepstra(recorded.mel), cepstra(spoken.mel)
    path = warping_path(x, y)
    at, to = path[:, 0], path[:, 1]
    both = recorded.voiced[at] & spoken.voiced[to]
    return Comparison(
        distortion_db=float(DECIBELS * np.linalg.norm(x[at] - y[to], axis=1).mean()),
        log_f0_errors=np.log(spoken.f0_hz[to][both] / recorded.f0_hz[at][both]),
        voicing_differs=recorded.voiced[at] != spoken.voiced[to],
        duration_ratio=len(spoken.mel) / len(recorded.mel),
    )


def summary(comparisons: Sequence[Comparison]) -> dict[str, float | None]:
    """Figures of a corpus: means over utterances; F0 and voicing over all pairs. None where nothing was measured."""
    ratios = np.array([one.duration_ratio for one in comparisons])
    within = (ratios >= DURATION_BOUNDS[0]) & (ratios <= DURATION_BOUNDS[1])
    f0_errors = np.concatenate([one.log_f0_errors for one in comparisons])
    return {
        "mel_cepstral_distortion": float(np.mean([one.distortion_db for one in comparisons])),
        "log_f0_rmse": float(np.sqrt(np.mean(f0_errors**2))) if len(f0_errors) else None,
        "voicing_error": float(np.concatenate([one.voicing_differs for one in comparisons]).mean()),
        "duration_ratio": float(ratios.mean()),
        "duration_within_bounds": float(within.mean()),
    }
