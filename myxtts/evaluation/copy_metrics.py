"""Metrics of copies of recordings that have the same length, frame by frame: what a vocoder makes
of recorded mels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from myxtts.audio.format import DECIBELS_PER_NEPER
from myxtts.data.audio_file import to_pcm
from myxtts.evaluation.acoustic_metrics import (
    MCD_FACTOR,
    AcousticFeatures,
    loud_frames,
    mel_cepstrum,
    pitch_errors,
    root_mean_square,
)
from myxtts.evaluation.perceptual import NEEDS, PACKAGES, PerceptualScores, installed_scores
from myxtts.evaluation.report import METRICS, Metrics
from myxtts.evaluation.speech import acoustic_features
from myxtts.training.observation import Pace, no_pace

Key = TypeVar("Key")


@dataclass(frozen=True, eq=False)
class CopyMetrics:
    """Metrics of a copy of a recording of T frames.

    Attributes:
        mel_error_db: see `log_mel_error_db`.
        mcd_db: mean mel-cepstral distortion of the frames; nothing is warped.
        log_f0_errors: float [frames voiced in both], natural logarithm of F0 of the copy over F0 of
            the recording.
        voicing_errors: bool [T], whether the frame is voiced in one of them only.
        scores: `pesq_wb` and `stoi`, without those whose package is missing or that are not defined
            for this recording.
    """

    mel_error_db: float
    mcd_db: float
    log_f0_errors: np.ndarray
    voicing_errors: np.ndarray
    scores: dict[str, float]


def log_mel_error_db(recorded_mel: np.ndarray, copied_mel: np.ndarray) -> float:
    """Return the mean absolute difference of two log-mels, [T, 80] each, in dB: over all bands of
    the loud frames.
    """
    loud = loud_frames(recorded_mel)
    return float(DECIBELS_PER_NEPER * np.abs(recorded_mel[loud] - copied_mel[loud]).mean())


def frame_distortion_db(recorded_mel: np.ndarray, copied_mel: np.ndarray) -> np.ndarray:
    """Return the mel-cepstral distortion (Kubichek 1993, without c0) of each frame, [T, 80] twice
    -> [T].
    """
    return MCD_FACTOR * np.linalg.norm(
        mel_cepstrum(recorded_mel) - mel_cepstrum(copied_mel), axis=1
    )


class Waves(NamedTuple):
    """Waves as 16-bit files keep them, float32 [samples] each, and their features."""

    waves: list[np.ndarray]
    features: list[AcousticFeatures]


def waves_in_16_bits(waves: Sequence[np.ndarray], device: str, pace: Pace = no_pace) -> Waves:
    """Round waves to 16 bits, and compute their features on a device.

    Args:
        waves: float32 [samples] in [-1, 1] at 22,050 Hz; at least 385 samples.
    """
    rounded = [in_16_bits(wave) for wave in waves]
    return Waves(rounded, acoustic_features(rounded, device, pace))


def measure_copies(
    recordings: Waves,
    copies: Sequence[np.ndarray],
    device: str,
    perceptual: PerceptualScores,
    pace: Pace = no_pace,
) -> list[CopyMetrics]:
    """Measure the copy of each recording. Both are compared as 16-bit samples, as in a WAV file.

    Args:
        copies: float32 [samples] in [-1, 1] at 22,050 Hz, as long as the recordings.
        device: computes mels and F0.
        perceptual: scores to measure, too.
    """
    copied = waves_in_16_bits(copies, device, pace)
    metrics = []
    for waves_and_features in zip(
        recordings.waves, copied.waves, recordings.features, copied.features, strict=True
    ):
        pace()
        metrics.append(copy_metrics(*waves_and_features, perceptual))
    return metrics


def copy_metrics(
    recording: np.ndarray,
    copy: np.ndarray,
    recorded: AcousticFeatures,
    copied: AcousticFeatures,
    perceptual: PerceptualScores,
) -> CopyMetrics:
    """Compare two waves, float32 [samples], and their features of as many frames."""
    recording, frames = recording[: len(copy)], np.arange(len(recorded.mel))
    scores = {name: score(recording, copy) for name, score in perceptual.items()}
    return CopyMetrics(
        log_mel_error_db(recorded.mel, copied.mel),
        float(frame_distortion_db(recorded.mel, copied.mel).mean()),
        *pitch_errors(recorded, copied, frames, frames),
        scores={name: score for name, score in scores.items() if score is not None},
    )


def mean_copy_metrics(utterances: Sequence[CopyMetrics]) -> dict[str, float | None]:
    """Return means over utterances; F0 and voicing errors are over all frames. None where nothing
    was measured.
    """
    f0_errors = np.concatenate([metrics.log_f0_errors for metrics in utterances])
    return {
        **{score: mean_of_scores(utterances, score) for score in PACKAGES},
        "log_mel_error": float(np.mean([metrics.mel_error_db for metrics in utterances])),
        "mel_cepstral_distortion": float(np.mean([metrics.mcd_db for metrics in utterances])),
        "log_f0_rmse": root_mean_square(f0_errors),
        "voicing_error": float(
            np.concatenate([metrics.voicing_errors for metrics in utterances]).mean()
        ),
    }


def with_common_scores(
    columns: Mapping[Key, Sequence[CopyMetrics]],
) -> dict[Key, list[CopyMetrics]]:
    """Return the metrics of the same utterances, without the scores of an utterance that some
    column lacks.
    """
    common = [
        set.intersection(*(set(copy.scores) for copy in copies))
        for copies in zip(*columns.values(), strict=True)
    ]
    return {
        column: [
            replace(copy, scores={name: copy.scores[name] for name in names})
            for copy, names in zip(copies, common, strict=True)
        ]
        for column, copies in columns.items()
    }


def without_perceptual(metrics: Metrics) -> Metrics:
    """Return metrics without those that were not asked for, of PACKAGES."""
    return {key: metric for key, metric in metrics.items() if key not in PACKAGES}


def score_notes(utterances: Sequence[CopyMetrics]) -> list[str]:
    """Return notes on the scores that are missing, and on the utterances that a score
    leaves out.
    """
    installed, notes = installed_scores(), []
    if missing := [score for score in PACKAGES if score not in installed]:
        names = " and ".join(METRICS[score].label for score in missing)
        notes.append(
            f"to measure {names}, install: pip install"
            f" {' '.join(PACKAGES[score] for score in missing)}"
        )
    for score in installed:
        count = sum(score not in metrics.scores for metrics in utterances)
        if count:
            name = METRICS[score].label
            notes.append(
                f"{name} is without {count} of {len(utterances)} utterances: it {NEEDS[score]}"
            )
    return notes


def mean_of_scores(utterances: Sequence[CopyMetrics], score: str) -> float | None:
    values = [metrics.scores[score] for metrics in utterances if score in metrics.scores]
    return float(np.mean(values)) if values else None


def in_16_bits(wave: np.ndarray) -> np.ndarray:
    """Return a wave as a 16-bit file keeps it, float32 [samples]."""
    return to_pcm(wave).astype(np.float32) / 32768.0
