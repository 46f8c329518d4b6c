"""Metrics of speech against a recording, along a warping path or frame by frame; PESQ and STOI."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain

import librosa
import numpy as np
import soxr

from myxtts.audio.format import DECIBELS_PER_NEPER, HOP_SAMPLES, SAMPLE_RATE_HZ, TOP_DB
from myxtts.evaluation.table import METRICS, Means
from myxtts.training.observation import Throttle, no_throttle

# Both packages are optional: pesq has C code of ITU-T P.862, whose rights are reserved.
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
MCD_FACTOR = 10.0 * np.sqrt(2.0) / np.log(10.0)  # distance of two mel cepstra -> dB
DURATION_BOUNDS = (0.95, 1.05)
# A frame this far from its counterpart on the warping path has nothing in common with it.
UNRELATED_DB = 6.0
# docs/experiments/evaluation_metrics.md lists what this threshold finds and misses.
MIN_UNMATCHED_S = 0.05


def pesq_wb(recording: np.ndarray, copy: np.ndarray) -> float | None:
    """Return the wideband PESQ (ITU-T P.862.2) of a copy, from 1.0 to 4.64, by the package `pesq`.

    Both waves, float32 [samples] in [-1, 1] at 22,050 Hz of the same length, are resampled to 16
    kHz by soxr. None without the package, or for waves that PESQ is not defined for: see NEEDS.
    """
    if not find_spec("pesq"):
        return None
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

    Waves are as for `pesq_wb`. The package `pystoi` resamples them to 10 kHz and leaves out frames
    40 dB below the loudest of the recording. None without it, or for too little speech: see NEEDS.
    """
    if not find_spec("pystoi"):
        return None
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


SCORES = {"pesq_wb": pesq_wb, "stoi": stoi}


@dataclass(frozen=True, eq=False)
class AcousticFeatures:
    """A wave, float32 [samples], and its T mel frames."""

    wave: np.ndarray
    mel: np.ndarray  # float32 [T, 80], log-mel
    f0_hz: np.ndarray  # float32 [T], 0 where unvoiced
    voiced: np.ndarray  # bool [T]


@dataclass(frozen=True, eq=False)
class FrameErrors:
    """Errors of P pairs of frames, of a recording and of other speech."""

    mcd_db: float  # mean mel-cepstral distortion of the pairs
    log_f0_errors: np.ndarray  # [pairs voiced in both], ln of the other F0 over recorded F0
    voicing_errors: np.ndarray  # bool [P]: one frame of the pair is voiced, the other is not


@dataclass(frozen=True, eq=False)
class UtteranceMetrics(FrameErrors):
    """Metrics of one synthesized utterance, along a warping path; see `longest_unmatched_s`."""

    duration_ratio: float  # synthesized frames over recorded frames
    deleted_s: float  # longest stretch of the recording that the synthesized speech lacks
    inserted_s: float  # longest stretch of the synthesized speech that the recording lacks

    @property
    def has_deletion(self) -> bool:
        return self.deleted_s > MIN_UNMATCHED_S

    @property
    def has_insertion(self) -> bool:
        return self.inserted_s > MIN_UNMATCHED_S


@dataclass(frozen=True, eq=False)
class CopyMetrics(FrameErrors):
    """Metrics of a copy of a recording, of the frames of the same times; nothing is warped."""

    mel_error_db: float  # see `log_mel_error_db`
    scores: Mapping[str, float | None]  # those that were asked for; None where one is not measured


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


def distortion_db(recorded_cepstra: np.ndarray, cepstra: np.ndarray) -> np.ndarray:
    """Return the mel-cepstral distortion (Kubichek 1993) of each pair of frames, [T]."""
    # Without c0, which is the level: louder speech is no worse.
    return MCD_FACTOR * np.linalg.norm(recorded_cepstra - cepstra, axis=1)


def warping_path(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the path of dynamic time warping: [T, D], [U, D] -> int [P, 2]."""
    _, path = librosa.sequence.dtw(X=x.T, Y=y.T, metric="euclidean")
    return path[::-1]


def align(recorded_mel: np.ndarray, synthesized_mel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the warping path of two log-mels, int [P, 2], and each pair's distortion in dB."""
    x = mel_cepstrum(recorded_mel)
    y = mel_cepstrum(synthesized_mel)
    path = warping_path(x, y)
    return path, distortion_db(x[path[:, 0]], y[path[:, 1]])


def utterance_metrics(
    recorded: AcousticFeatures, synthesized: AcousticFeatures
) -> UtteranceMetrics:
    """Compare synthesized speech with its recording, along the path with the least distortion."""
    path, pair_db = align(recorded.mel, synthesized.mel)
    return UtteranceMetrics(
        float(pair_db.mean()),
        *pitch_errors(recorded, synthesized, path[:, 0], path[:, 1]),
        duration_ratio=len(synthesized.mel) / len(recorded.mel),
        deleted_s=longest_unmatched_s(path, pair_db, loud_frames(recorded.mel)),
        inserted_s=longest_unmatched_s(path[:, ::-1], pair_db, loud_frames(synthesized.mel)),
    )


def pitch_errors(
    recorded: AcousticFeatures, synthesized: AcousticFeatures, row: np.ndarray, column: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return log-F0 errors and voicing errors of pairs of frames, int [P]; see `FrameErrors`."""
    both_voiced = recorded.voiced[row] & synthesized.voiced[column]
    log_f0_errors = np.log(
        synthesized.f0_hz[column][both_voiced] / recorded.f0_hz[row][both_voiced]
    )
    return log_f0_errors, recorded.voiced[row] != synthesized.voiced[column]


def loud_frames(log_mel: np.ndarray) -> np.ndarray:
    """Return which frames are not silence, by their level under the loudest one, bool [T]."""
    level_db = DECIBELS_PER_NEPER * log_mel.mean(axis=1)
    return level_db > level_db.max() - TOP_DB


def longest_unmatched_s(path: np.ndarray, pair_db: np.ndarray, loud: np.ndarray) -> float:
    """Return the seconds of the longest stretch of an utterance that the other one lacks.

    If the second utterance lacks a word, the path stays on one of its frames while it passes the
    word in the first utterance: a run of loud frames that have no counterpart of their own and
    differ from the frame they are matched to. Slower speech also has frames without a counterpart
    of their own, but these resemble the frame they are matched to. A frame without a counterpart
    therefore counts by its distortion, in full from UNRELATED_DB on, and a frame with a counterpart
    is subtracted. The result is the largest sum over a stretch (Kadane's algorithm).

    Args:
        path: int [P, 2], pairs (first, second), with the distortion of each.
        loud: bool, of each frame of the first utterance.
    """
    step = np.diff(path, axis=0, prepend=path[:1] - 1)
    unmatched = np.minimum(pair_db / UNRELATED_DB, 1.0) * loud[path[:, 0]]
    gain = np.where(step[:, 1] == 0, unmatched, -1.0)
    sums = np.concatenate([[0.0], np.cumsum(gain)])
    return float((sums - np.minimum.accumulate(sums)).max()) * HOP_SAMPLES / SAMPLE_RATE_HZ


def mean_frame_errors(utterances: Sequence[FrameErrors]) -> Means:
    """Return means over utterances, of F0 and voicing over pairs."""
    f0_errors = np.concatenate([metrics.log_f0_errors for metrics in utterances])
    voicing_errors = np.concatenate([metrics.voicing_errors for metrics in utterances])
    # Two utterances may have no frame that is voiced in both, as an untrained voice shows.
    log_f0_rmse = float(np.sqrt(np.mean(f0_errors**2))) if len(f0_errors) else None
    return {
        "mel_cepstral_distortion": float(np.mean([metrics.mcd_db for metrics in utterances])),
        "log_f0_rmse": log_f0_rmse,
        "voicing_error": float(voicing_errors.mean()),
    }


def corpus_metrics(utterances: Sequence[UtteranceMetrics]) -> Means:
    """Return the metrics of a corpus; see `mean_frame_errors`."""
    ratios = np.array([metrics.duration_ratio for metrics in utterances])
    within = (ratios >= DURATION_BOUNDS[0]) & (ratios <= DURATION_BOUNDS[1])
    return mean_frame_errors(utterances) | {
        "duration_ratio": float(ratios.mean()),
        "duration_within_bounds": float(within.mean()),
        "utterances_with_deletions": sum(metrics.has_deletion for metrics in utterances),
        "utterances_with_insertions": sum(metrics.has_insertion for metrics in utterances),
    }


def log_mel_error_db(recorded_mel: np.ndarray, copied_mel: np.ndarray) -> float:
    """Return the mean absolute difference in dB of two log-mels, [T, 80], in their loud frames."""
    loud = loud_frames(recorded_mel)
    return float(DECIBELS_PER_NEPER * np.abs(recorded_mel[loud] - copied_mel[loud]).mean())


def measure_copies(
    recordings: Sequence[AcousticFeatures],
    copies: Sequence[AcousticFeatures],
    perceptual: bool,
    throttle: Throttle = no_throttle,
) -> list[CopyMetrics]:
    """Compare the copy of each recording with it, also by SCORES if `perceptual`.

    Copies have as many frames as the recordings. `throttle` is called before each copy.
    """
    metrics = []
    for recorded, copied in zip(recordings, copies, strict=True):
        throttle()
        frames = np.arange(len(recorded.mel))
        scores = {}
        if perceptual:
            waves = recorded.wave[: len(copied.wave)], copied.wave
            scores = {name: score(*waves) for name, score in SCORES.items()}
        frame_db = distortion_db(mel_cepstrum(recorded.mel), mel_cepstrum(copied.mel))
        pitch = pitch_errors(recorded, copied, frames, frames)
        mel_error_db = log_mel_error_db(recorded.mel, copied.mel)
        metrics.append(CopyMetrics(float(frame_db.mean()), *pitch, mel_error_db, scores))
    return metrics


def mean_copy_metrics(utterances: Sequence[CopyMetrics]) -> Means:
    """Return the metrics of copies, of the scores over the utterances that have them."""
    means: Means = {}
    for name in utterances[0].scores:
        values = [value for copy in utterances if (value := copy.scores[name]) is not None]
        means[name] = float(np.mean(values)) if values else None
    means["log_mel_error"] = float(np.mean([metrics.mel_error_db for metrics in utterances]))
    return means | mean_frame_errors(utterances)


def with_common_scores(
    columns: Mapping[str, Sequence[Sequence[CopyMetrics]]],
) -> dict[str, list[list[CopyMetrics]]]:
    """Return the metrics by column, seed and utterance, with scores only where all have them."""
    # A mean over other utterances in each column would compare sentences instead of vocoders.
    lacking: list[dict[str, None]] = []
    for copies in zip(*chain.from_iterable(columns.values()), strict=True):
        names = copies[0].scores
        unmeasured = [name for name in names if any(of.scores[name] is None for of in copies)]
        lacking.append(dict.fromkeys(unmeasured))

    def common(copies: Sequence[CopyMetrics]) -> list[CopyMetrics]:
        pairs = zip(copies, lacking, strict=True)
        return [replace(copy, scores={**copy.scores, **unmeasured}) for copy, unmeasured in pairs]

    return {name: [common(copies) for copies in seeds] for name, seeds in columns.items()}


def score_notes(utterances: Sequence[CopyMetrics]) -> list[str]:
    """Return notes on missing packages, and on the utterances that a score leaves out."""
    notes = []
    missing = [score for score, package in PACKAGES.items() if not find_spec(package)]
    if missing:
        names = " and ".join(METRICS[score].label for score in missing)
        packages = " ".join(PACKAGES[score] for score in missing)
        notes.append(f"to measure {names}, install: pip install {packages}")
    for score, needs in NEEDS.items():
        count = sum(metrics.scores[score] is None for metrics in utterances)
        if count and score not in missing:
            name = METRICS[score].label
            notes.append(f"{name} is without {count} of {len(utterances)} utterances: it {needs}")
    return notes
