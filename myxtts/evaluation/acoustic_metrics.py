"""How far one utterance is from another: spectrum, pitch, voicing, duration, what is missing. Free of TensorFlow."""

from collections.abc import Sequence
from dataclasses import dataclass

import librosa
import numpy as np

from myxtts.audio.format import DECIBELS_PER_NEPER, HOP_SAMPLES, SAMPLE_RATE_HZ, TOP_DB

CEPSTRA = 13
DECIBELS = 10.0 * np.sqrt(2.0) / np.log(10.0)
DURATION_BOUNDS = 0.95, 1.05
UNLIKE_DB = 6.0  # a frame this far from what it is matched to has nothing in common with it
FAULT_S = 0.05  # docs/reference/evaluation.md has what this bound finds and misses


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
        skipped_s: how much of the recording is not spoken, see `unmatched_s`.
        repeated_s: how much is spoken that the recording does not have.
    """

    distortion_db: float
    log_f0_errors: np.ndarray
    voicing_differs: np.ndarray
    duration_ratio: float
    skipped_s: float
    repeated_s: float


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
    distance_db = DECIBELS * np.linalg.norm(x[at] - y[to], axis=1)
    return Comparison(
        distortion_db=float(distance_db.mean()),
        log_f0_errors=np.log(spoken.f0_hz[to][both] / recorded.f0_hz[at][both]),
        voicing_differs=recorded.voiced[at] != spoken.voiced[to],
        duration_ratio=len(spoken.mel) / len(recorded.mel),
        skipped_s=unmatched_s(path, distance_db, loud(recorded.mel)),
        repeated_s=unmatched_s(path[:, ::-1], distance_db, loud(spoken.mel)),
    )


def loud(log_mel: np.ndarray) -> np.ndarray:
    """Whether each frame is no silence, bool [T]: by the mean of its bands in decibels, against the loudest frame."""
    level_db = DECIBELS_PER_NEPER * log_mel.mean(axis=1)
    return level_db > level_db.max() - TOP_DB


def unmatched_s(path: np.ndarray, distance_db: np.ndarray, loud: np.ndarray) -> float:
    """Seconds of the longest stretch of one utterance that has no counterpart in the other.

    Where a word is missing from the second utterance, the path stands still there while it passes the word in the
    first: a run of loud frames without a partner of their own, unlike the frame that they are matched to. A slower
    sound gives frames without a partner, too, but those are like what they are matched to. So a frame without a partner
    counts by its distance, in full from UNLIKE_DB on, and one with a partner is taken away; the stretch is the one
    with the largest sum (Kadane).

    Args:
        path: int [P, 2] of pairs (first, second); distance_db: of each pair.
        loud: bool, of each frame of the first.
    """
    step = np.diff(path, axis=0, prepend=path[:1] - 1)
    alone = step[:, 1] == 0
    gain = np.where(alone, np.minimum(distance_db / UNLIKE_DB, 1.0) * loud[path[:, 0]], -1.0)
    sums = np.concatenate([[0.0], np.cumsum(gain)])
    return float((sums - np.minimum.accumulate(sums)).max()) * HOP_SAMPLES / SAMPLE_RATE_HZ


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
        "skipped": sum(one.skipped_s > FAULT_S for one in comparisons),
        "repeated": sum(one.repeated_s > FAULT_S for one in comparisons),
    }
