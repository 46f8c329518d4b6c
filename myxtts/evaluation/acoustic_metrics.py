"""Metrics of synthesized speech against its recording: spectrum, F0, voicing, duration, missing and
extra words.

No TensorFlow.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import librosa
import numpy as np

from myxtts.audio.format import DECIBELS_PER_NEPER, HOP_SAMPLES, SAMPLE_RATE_HZ, TOP_DB

CEPSTRA = 13
MCD_FACTOR = 10.0 * np.sqrt(2.0) / np.log(10.0)  # from the distance of two mel cepstra to decibels
DURATION_BOUNDS = 0.95, 1.05
UNRELATED_DB = (
    6.0  # a frame this far from its counterpart on the warping path has nothing in common with it
)
MIN_UNMATCHED_S = (
    0.05  # docs/experiments/evaluation_metrics.md lists what this threshold finds and misses
)


@dataclass(frozen=True, eq=False)
class AcousticFeatures:
    """Features of a wave of T mel frames.

    Attributes:
        mel: float32 [T, 80], log-mel.
        f0_hz: float32 [T], 0 where unvoiced.
        voiced: bool [T].
    """

    mel: np.ndarray
    f0_hz: np.ndarray
    voiced: np.ndarray

    @property
    def voiced_f0_hz(self) -> np.ndarray:
        """float32 [T], NaN where unvoiced."""
        return np.where(self.voiced, self.f0_hz, np.nan)


@dataclass(frozen=True, eq=False)
class UtteranceMetrics:
    """Metrics of one synthesized utterance, along a warping path of P pairs of frames.

    Attributes:
        mcd_db: mean mel-cepstral distortion of the pairs.
        log_f0_errors: float [pairs voiced in both], natural logarithm of synthesized F0 over
            recorded F0.
        voicing_errors: bool [P], whether one frame of the pair is voiced and the other one is not.
        duration_ratio: synthesized frames over recorded frames.
        deleted_s: longest stretch of the recording that the synthesized speech lacks; see
            `longest_unmatched_s`.
        inserted_s: longest stretch of the synthesized speech that the recording lacks.
    """

    mcd_db: float
    log_f0_errors: np.ndarray
    voicing_errors: np.ndarray
    duration_ratio: float
    deleted_s: float
    inserted_s: float

    @property
    def has_deletion(self) -> bool:
        return self.deleted_s > MIN_UNMATCHED_S

    @property
    def has_insertion(self) -> bool:
        return self.inserted_s > MIN_UNMATCHED_S


def mel_cepstrum(log_mel: np.ndarray, first: int = 1, last: int = CEPSTRA) -> np.ndarray:
    """Return the mel-cepstral coefficients first to last: [T, bands] -> [T, last - first + 1].

    They are the c of log|H| = c0 + Σ c_m cos(mω), for which MCD_FACTOR yields decibels: 2/bands
    times the sums of a DCT-II, or √(2/bands) times an orthonormal DCT-II. Over all coefficients,
    the distortion is the root mean square difference of two spectra in dB.
    """
    bands = log_mel.shape[-1]
    angle = np.pi / bands * (np.arange(bands) + 0.5)
    return (
        log_mel.astype(np.float64)
        @ np.cos(angle[:, None] * np.arange(first, last + 1))
        * (2.0 / bands)
    )


def warping_path(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the path of dynamic time warping: [T, D], [U, D] -> int [P, 2], from (0, 0) to (T - 1,
    U - 1).
    """
    _, path = librosa.sequence.dtw(X=x.T, Y=y.T, metric="euclidean")
    return path[::-1]


def align(recorded_mel: np.ndarray, synthesized_mel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the warping path of two log-mels, int [P, 2], and the mel-cepstral distortion of each
    pair in dB, [P].

    The distortion is Kubichek's (1993), without c0.
    """
    x, y = mel_cepstrum(recorded_mel), mel_cepstrum(synthesized_mel)
    path = warping_path(x, y)
    return path, MCD_FACTOR * np.linalg.norm(x[path[:, 0]] - y[path[:, 1]], axis=1)


def utterance_metrics(
    recorded: AcousticFeatures, synthesized: AcousticFeatures
) -> UtteranceMetrics:
    """Compare synthesized speech with its recording, along the warping path that minimises the
    distortion.
    """
    path, distortion_db = align(recorded.mel, synthesized.mel)
    log_f0_errors, voicing_errors = pitch_errors(recorded, synthesized, path[:, 0], path[:, 1])
    return UtteranceMetrics(
        mcd_db=float(distortion_db.mean()),
        log_f0_errors=log_f0_errors,
        voicing_errors=voicing_errors,
        duration_ratio=len(synthesized.mel) / len(recorded.mel),
        deleted_s=longest_unmatched_s(path, distortion_db, loud_frames(recorded.mel)),
        inserted_s=longest_unmatched_s(path[:, ::-1], distortion_db, loud_frames(synthesized.mel)),
    )


def pitch_errors(
    recorded: AcousticFeatures, synthesized: AcousticFeatures, row: np.ndarray, column: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return log-F0 errors and voicing errors of P pairs of frames; see `UtteranceMetrics`.

    Args:
        row, column: int [P], the frames of the recording and of the synthesized speech.
    """
    both_voiced = recorded.voiced[row] & synthesized.voiced[column]
    log_f0_errors = np.log(
        synthesized.f0_hz[column][both_voiced] / recorded.f0_hz[row][both_voiced]
    )
    return log_f0_errors, recorded.voiced[row] != synthesized.voiced[column]


def root_mean_square(values: np.ndarray) -> float | None:
    return float(np.sqrt(np.mean(values**2))) if len(values) else None


def loud_frames(log_mel: np.ndarray) -> np.ndarray:
    """Return which frames are not silence, bool [T]: by the mean of their bands in dB relative to
    the loudest frame.
    """
    level_db = DECIBELS_PER_NEPER * log_mel.mean(axis=1)
    return level_db > level_db.max() - TOP_DB


def longest_unmatched_s(path: np.ndarray, distortion_db: np.ndarray, loud: np.ndarray) -> float:
    """Return the seconds of the longest stretch of one utterance without a counterpart in the other
    one.

    If the second utterance lacks a word, the path stays on one of its frames while it passes the
    word in the first utterance: a run of loud frames that have no counterpart of their own and
    differ from the frame they are matched to. Slower speech also has frames without a counterpart
    of their own, but these resemble the frame they are matched to. A frame without a counterpart
    therefore counts by its distortion, in full from UNRELATED_DB on, and a frame with a counterpart
    is subtracted. The result is the largest sum over a stretch (Kadane's algorithm).

    Args:
        path: int [P, 2], pairs (first, second).
        distortion_db: of each pair.
        loud: bool, of each frame of the first utterance.
    """
    step = np.diff(path, axis=0, prepend=path[:1] - 1)
    without_counterpart = step[:, 1] == 0
    gain = np.where(
        without_counterpart, np.minimum(distortion_db / UNRELATED_DB, 1.0) * loud[path[:, 0]], -1.0
    )
    sums = np.concatenate([[0.0], np.cumsum(gain)])
    return float((sums - np.minimum.accumulate(sums)).max()) * HOP_SAMPLES / SAMPLE_RATE_HZ


def corpus_metrics(utterances: Sequence[UtteranceMetrics]) -> dict[str, float | None]:
    """Return means over utterances; F0 and voicing errors are over all pairs. None where nothing
    was measured.
    """
    ratios = np.array([metrics.duration_ratio for metrics in utterances])
    within = (ratios >= DURATION_BOUNDS[0]) & (ratios <= DURATION_BOUNDS[1])
    f0_errors = np.concatenate([metrics.log_f0_errors for metrics in utterances])
    return {
        "mel_cepstral_distortion": float(np.mean([metrics.mcd_db for metrics in utterances])),
        "log_f0_rmse": root_mean_square(f0_errors),
        "voicing_error": float(
            np.concatenate([metrics.voicing_errors for metrics in utterances]).mean()
        ),
        "duration_ratio": float(ratios.mean()),
        "duration_within_bounds": float(within.mean()),
        "utterances_with_deletions": sum(metrics.has_deletion for metrics in utterances),
        "utterances_with_insertions": sum(metrics.has_insertion for metrics in utterances),
    }
