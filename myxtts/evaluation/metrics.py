"""Metrics of speech against a recording, along a warping path or frame by frame; PESQ and STOI."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import NamedTuple, TypeVar

import librosa
import numpy as np
import soxr

from myxtts.audio.format import DECIBELS_PER_NEPER, HOP_SAMPLES, SAMPLE_RATE_HZ, TOP_DB
from myxtts.data.audio_file import to_pcm
from myxtts.evaluation.table import METRICS, Metrics
from myxtts.training.observation import Throttle, no_throttle

# The score and the package that measures it, each under a licence of its own.
PACKAGES = {"pesq_wb": "pesq", "stoi": "pystoi"}
PESQ_RATE_HZ = 16_000
MIN_PESQ_S = 0.25
# The package has room for 50 stretches of speech; each takes 0.4 s or more with its pause. The 51st
# crashes Python.
MAX_PESQ_S = 20.0
# STOI needs 30 frames of 128 samples at 10 kHz, silent ones not counted.
MIN_STOI_S = 30 * 128 / 10_000
NEEDS = {
    "pesq_wb": (
        f"needs {MIN_PESQ_S:g} to {MAX_PESQ_S:g} s with speech, and a copy that is not silent"
    ),
    "stoi": f"needs {MIN_STOI_S:.1f} s of speech, pauses not counted",
}
# 13 coefficients without c0 are usual for the mel-cepstral distortion.
CEPSTRA = 13
# It turns the distance of two mel cepstra into decibels.
MCD_FACTOR = 10.0 * np.sqrt(2.0) / np.log(10.0)
DURATION_BOUNDS = (0.95, 1.05)
# A frame this far from its counterpart on the warping path has nothing in common with it.
UNRELATED_DB = 6.0
# docs/experiments/evaluation_metrics.md lists what this threshold finds and misses.
MIN_UNMATCHED_S = 0.05


def pesq_wb(recording: np.ndarray, copy: np.ndarray) -> float | None:
    """Return the wideband PESQ (ITU-T P.862.2) of a copy, from 1.0 to 4.64, by the package `pesq`.

    Both waves are resampled to 16 kHz by soxr.

    Args:
        recording, copy: float32 [samples] in [-1, 1] at 22,050 Hz, of the same length.

    Returns:
        None for waves that PESQ is not defined for: see NEEDS.
    """
    from pesq import BufferTooShortError, NoUtterancesError, pesq

    if len(recording) > MAX_PESQ_S * SAMPLE_RATE_HZ or not (recording.any() and copy.any()):
        return None
    waves = (soxr.resample(wave, SAMPLE_RATE_HZ, PESQ_RATE_HZ) for wave in (recording, copy))
    try:
        return float(pesq(PESQ_RATE_HZ, *waves, "wb"))
    except (BufferTooShortError, NoUtterancesError):
        return None


def stoi(recording: np.ndarray, copy: np.ndarray) -> float | None:
    """Return the short-time objective intelligibility (Taal et al. 2011) of a copy, up to 1.

    The package `pystoi` resamples both waves to 10 kHz and leaves out frames 40 dB below the
    loudest frame of the recording.

    Args:
        recording, copy: as for `pesq_wb`.

    Returns:
        None for recordings that are too short: see NEEDS.
    """
    import pystoi

    if len(recording) < MIN_STOI_S * SAMPLE_RATE_HZ or not recording.any():
        return None
    with warnings.catch_warnings():
        # pystoi warns and returns 1e-5 when too little speech is left; that is no score.
        warnings.filterwarnings("error", "Not enough STFT frames", RuntimeWarning)
        try:
            return float(pystoi.stoi(recording, copy, SAMPLE_RATE_HZ))
        except RuntimeWarning:
            return None


PerceptualScores = dict[str, Callable[[np.ndarray, np.ndarray], float | None]]
"""By the keys of PACKAGES."""

SCORES: PerceptualScores = {"pesq_wb": pesq_wb, "stoi": stoi}


def installed_scores() -> PerceptualScores:
    """Return the scores of PACKAGES whose package is installed, by key."""
    return {name: score for name, score in SCORES.items() if find_spec(PACKAGES[name])}


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


class Waves(NamedTuple):
    """Waves, float32 [samples] each, and their features."""

    waves: Sequence[np.ndarray]
    features: Sequence[AcousticFeatures]


@dataclass(frozen=True, eq=False)
class FrameErrors:
    """Errors of P pairs of frames, of a recording and of other speech.

    Attributes:
        mcd_db: mean mel-cepstral distortion of the pairs.
        log_f0_errors: float [pairs voiced in both], natural logarithm of the other F0 over recorded
            F0.
        voicing_errors: bool [P], whether one frame of the pair is voiced and the other one is not.
    """

    mcd_db: float
    log_f0_errors: np.ndarray
    voicing_errors: np.ndarray


@dataclass(frozen=True, eq=False)
class UtteranceMetrics(FrameErrors):
    """Metrics of one synthesized utterance, along a warping path.

    Attributes:
        duration_ratio: synthesized frames over recorded frames.
        deleted_s: longest stretch of the recording that the synthesized speech lacks; see
            `longest_unmatched_s`.
        inserted_s: longest stretch of the synthesized speech that the recording lacks.
    """

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
    cosines = np.cos(angle[:, None] * np.arange(first, last + 1))
    return log_mel.astype(np.float64) @ cosines * (2.0 / bands)


def warping_path(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the path of dynamic time warping: [T, D], [U, D] -> int [P, 2]."""
    _, path = librosa.sequence.dtw(X=x.T, Y=y.T, metric="euclidean")
    return path[::-1]


def align(recorded_mel: np.ndarray, synthesized_mel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the warping path of two log-mels, int [P, 2], and the distortion of each pair in dB.

    The mel-cepstral distortion is Kubichek's (1993), without c0.
    """
    # Without c0, which is the level: louder speech is no worse.
    x = mel_cepstrum(recorded_mel)
    y = mel_cepstrum(synthesized_mel)
    path = warping_path(x, y)
    return path, MCD_FACTOR * np.linalg.norm(x[path[:, 0]] - y[path[:, 1]], axis=1)


def utterance_metrics(
    recorded: AcousticFeatures, synthesized: AcousticFeatures
) -> UtteranceMetrics:
    """Compare synthesized speech with its recording, along the path with the least distortion."""
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


def loud_frames(log_mel: np.ndarray) -> np.ndarray:
    """Return which frames are not silence, bool [T]."""
    # By the mean of their bands, relative to the loudest frame.
    level_db = DECIBELS_PER_NEPER * log_mel.mean(axis=1)
    return level_db > level_db.max() - TOP_DB


def longest_unmatched_s(path: np.ndarray, distortion_db: np.ndarray, loud: np.ndarray) -> float:
    """Return the seconds of the longest stretch of an utterance that the other one lacks.

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


def mean_frame_errors(utterances: Sequence[FrameErrors]) -> dict[str, float | None]:
    """Return means over utterances, of F0 and voicing over pairs; None where none is measured."""
    f0_errors = np.concatenate([metrics.log_f0_errors for metrics in utterances])
    voicing_errors = np.concatenate([metrics.voicing_errors for metrics in utterances])
    # Two utterances may have no frame that is voiced in both, as an untrained voice shows.
    log_f0_rmse = float(np.sqrt(np.mean(f0_errors**2))) if len(f0_errors) else None
    return {
        "mel_cepstral_distortion": float(np.mean([metrics.mcd_db for metrics in utterances])),
        "log_f0_rmse": log_f0_rmse,
        "voicing_error": float(voicing_errors.mean()),
    }


def corpus_metrics(utterances: Sequence[UtteranceMetrics]) -> dict[str, float | None]:
    """Return the metrics of a corpus by the keys of METRICS; see `mean_frame_errors`."""
    ratios = np.array([metrics.duration_ratio for metrics in utterances])
    within = (ratios >= DURATION_BOUNDS[0]) & (ratios <= DURATION_BOUNDS[1])
    return {
        **mean_frame_errors(utterances),
        "duration_ratio": float(ratios.mean()),
        "duration_within_bounds": float(within.mean()),
        "utterances_with_deletions": sum(metrics.has_deletion for metrics in utterances),
        "utterances_with_insertions": sum(metrics.has_insertion for metrics in utterances),
    }


Key = TypeVar("Key")


@dataclass(frozen=True, eq=False)
class CopyMetrics(FrameErrors):
    """Metrics of a copy of a recording, of the frames of the same times; nothing is warped.

    Attributes:
        mel_error_db: see `log_mel_error_db`.
        scores: `pesq_wb` and `stoi`, without those whose package is missing or that are not defined
            for this recording.
    """

    mel_error_db: float
    scores: dict[str, float]


def log_mel_error_db(recorded_mel: np.ndarray, copied_mel: np.ndarray) -> float:
    """Return the mean absolute difference in dB of two log-mels, [T, 80], in their loud frames."""
    loud = loud_frames(recorded_mel)
    return float(DECIBELS_PER_NEPER * np.abs(recorded_mel[loud] - copied_mel[loud]).mean())


def frame_distortion_db(recorded_mel: np.ndarray, copied_mel: np.ndarray) -> np.ndarray:
    """Return the mel-cepstral distortion (Kubichek 1993, without c0) of each frame, [T]."""
    difference = mel_cepstrum(recorded_mel) - mel_cepstrum(copied_mel)
    return MCD_FACTOR * np.linalg.norm(difference, axis=1)


def measure_copies(
    recordings: Waves, copies: Waves, perceptual: PerceptualScores, throttle: Throttle = no_throttle
) -> list[CopyMetrics]:
    """Compare the copy of each recording with it. Copies have as many frames as the recordings.

    Args:
        perceptual: scores that are also measured.
        throttle: called before each copy.
    """
    metrics = []
    for recording, copy, recorded, copied in zip(
        recordings.waves, copies.waves, recordings.features, copies.features, strict=True
    ):
        throttle()
        frames = np.arange(len(recorded.mel))
        scores = {name: score(recording[: len(copy)], copy) for name, score in perceptual.items()}
        of_copy = CopyMetrics(
            float(frame_distortion_db(recorded.mel, copied.mel).mean()),
            *pitch_errors(recorded, copied, frames, frames),
            mel_error_db=log_mel_error_db(recorded.mel, copied.mel),
            scores={name: score for name, score in scores.items() if score is not None},
        )
        metrics.append(of_copy)
    return metrics


def mean_copy_metrics(utterances: Sequence[CopyMetrics]) -> dict[str, float | None]:
    """Return the metrics of copies by the keys of METRICS; see `mean_frame_errors`."""
    return {
        **{score: mean_of_scores(utterances, score) for score in PACKAGES},
        "log_mel_error": float(np.mean([metrics.mel_error_db for metrics in utterances])),
        **mean_frame_errors(utterances),
    }


def with_common_scores(
    columns: Mapping[Key, Sequence[CopyMetrics]],
) -> dict[Key, list[CopyMetrics]]:
    """Return the metrics of the same utterances, with scores only where all columns have them."""
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
    """Return notes on missing scores, and on the utterances that a score leaves out."""
    installed = installed_scores()
    notes = []
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
