"""Metrics of speech against a recording, along a warping path or frame by frame; PESQ and STOI.

Along a path both waves are trimmed: people and microphones leave any silence at the ends.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import chain

import librosa
import numpy as np
import soxr

from myxtts.audio.format import DECIBELS_PER_NEPER, HOP_SAMPLES, TOP_DB, sample_rate_hz
from myxtts.tasks.base import Throttle, no_throttle
from myxtts.tasks.evaluation.table import METRICS, Means

# All are optional: pesq has C code of ITU-T P.862, whose rights are reserved.
PACKAGES = {"pesq_wb": ("pesq",), "stoi": ("pystoi",), "dnsmos_p808": ("speechmos", "onnxruntime")}
# With torch it takes gigabytes, so no note asks for it.
LARGE_PACKAGES = {"speaker_cosine": ("resemblyzer",)}
PESQ_RATE_HZ = DNSMOS_RATE_HZ = 16_000
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
DURATION_BOUNDS = (0.9, 1.1)
TRIM_DB = 35.0  # below the loudest frame is silence, where it is at an end


def is_installed(score: str) -> bool:
    """Return whether the packages of a score are installed."""
    return all(find_spec(package) for package in (PACKAGES | LARGE_PACKAGES)[score])


def pesq_wb(recording: np.ndarray, copy: np.ndarray) -> float | None:
    """Return the wideband PESQ (ITU-T P.862.2) of a copy, from 1.0 to 4.64, by the package `pesq`.

    Both waves are float32 [samples] in [-1, 1], of the same length. None without the
    package, or for waves that PESQ is not defined for: see NEEDS.
    """
    if not is_installed("pesq_wb"):
        return None
    from pesq import BufferTooShortError, NoUtterancesError, pesq

    if len(recording) > MAX_PESQ_S * sample_rate_hz() or not (recording.any() and copy.any()):
        return None
    reference = soxr.resample(recording, sample_rate_hz(), PESQ_RATE_HZ)
    degraded = soxr.resample(copy, sample_rate_hz(), PESQ_RATE_HZ)
    try:
        return float(pesq(PESQ_RATE_HZ, reference, degraded, "wb"))
    except (BufferTooShortError, NoUtterancesError):
        return None


def stoi(recording: np.ndarray, copy: np.ndarray) -> float | None:
    """Return the short-time objective intelligibility (Taal et al. 2011) of a copy, up to 1.

    Waves are as for `pesq_wb`. The package `pystoi` resamples them to 10 kHz and leaves out frames
    40 dB below the loudest of the recording. None without it, or for too little speech: see NEEDS.
    """
    if not is_installed("stoi"):
        return None
    import pystoi

    if len(recording) < MIN_STOI_S * sample_rate_hz() or not recording.any():
        return None
    with warnings.catch_warnings():
        # pystoi warns and returns 1e-5 when too little speech is left; that is no score.
        warnings.filterwarnings("error", "Not enough STFT frames", RuntimeWarning)
        try:
            return float(pystoi.stoi(recording, copy, sample_rate_hz()))
        except RuntimeWarning:
            return None


SCORES = {"pesq_wb": pesq_wb, "stoi": stoi}


def dnsmos(wave: np.ndarray) -> Means:
    """Return the ratings of a wave, float32 [samples], that DNSMOS predicts, 1 to 5.

    They need no reference: P.808 (Reddy et al. 2021) and the overall one of P.835 (Reddy et al.
    2022), by the package `speechmos` at 16 kHz, and their mean. Empty without the package.
    """
    if not is_installed("dnsmos_p808"):
        return {}
    from speechmos import dnsmos

    at_16_khz = soxr.resample(wave, sample_rate_hz(), DNSMOS_RATE_HZ)
    scores = dnsmos.run(np.clip(at_16_khz, -1.0, 1.0), sr=DNSMOS_RATE_HZ)
    p808, overall = float(scores["p808_mos"]), float(scores["ovrl_mos"])
    return {"dnsmos_p808": p808, "dnsmos_overall": overall, "dnsmos_mean": 0.5 * (p808 + overall)}


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
    log_f0_pairs: np.ndarray  # ln Hz [2, pairs voiced in both], recorded and other
    voicing_errors: np.ndarray  # bool [P]: one frame of the pair is voiced, the other is not


@dataclass(frozen=True, eq=False)
class UtteranceMetrics(FrameErrors):
    """Metrics of one synthesized utterance, of trimmed waves along a warping path."""

    recorded_s: float
    synthesized_s: float
    log_f0: list[np.ndarray]  # ln Hz of all voiced frames, recorded and synthesized


@dataclass(frozen=True, eq=False)
class CopyMetrics(FrameErrors):
    """Metrics of a copy of a recording, of the frames of the same times; nothing is warped."""

    mel_error_db: float  # see `log_mel_error_db`
    scores: Mapping[str, float | None]  # those that were asked for; None where one is not measured


def mel_cepstrum(log_mel: np.ndarray, first: int = 1, last: int = CEPSTRA) -> np.ndarray:
    """Return the mel-cepstral coefficients first to last: [T, bands] -> [T, last - first + 1].

    They are the c of log|H| = c0 + Σ c_m cos(mω), for which MCD_FACTOR yields decibels: 2/bands
    times the sums of a DCT-II.
    """
    bands = log_mel.shape[-1]
    angle = np.pi / bands * (np.arange(bands) + 0.5)
    cosines = np.cos(angle[:, None] * np.arange(first, last + 1))
    return log_mel.astype(np.float64) @ cosines * (2.0 / bands)


def distortion_db(recorded_cepstra: np.ndarray, cepstra: np.ndarray) -> np.ndarray:
    """Return the mel-cepstral distortion (Kubichek 1993) of each pair of frames, [T]."""
    # Without c0, which is the level: louder speech is no worse.
    return MCD_FACTOR * np.linalg.norm(recorded_cepstra - cepstra, axis=1)


def align(recorded_mel: np.ndarray, synthesized_mel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the warping path of two log-mels, int [P, 2], and each pair's distortion in dB."""
    x, y = mel_cepstrum(recorded_mel), mel_cepstrum(synthesized_mel)
    _, backward = librosa.sequence.dtw(X=x.T, Y=y.T, metric="euclidean")
    path = backward[::-1]
    return path, distortion_db(x[path[:, 0]], y[path[:, 1]])


def trimmed(features: AcousticFeatures) -> AcousticFeatures:
    """Return features without the silence at both ends, TRIM_DB below the loudest frame."""
    _, (start, stop) = librosa.effects.trim(features.wave, top_db=TRIM_DB)
    frames = slice(start // HOP_SAMPLES, -(-stop // HOP_SAMPLES))
    return AcousticFeatures(
        features.wave[start:stop],
        features.mel[frames],
        features.f0_hz[frames],
        features.voiced[frames],
    )


# Synthesized speech has its own timing, so the frames of both utterances are paired by dynamic time
# warping. Spectra and pitch are compared pair by pair, and the lengths as they are.
def utterance_metrics(
    recorded: AcousticFeatures, synthesized: AcousticFeatures
) -> UtteranceMetrics:
    """Compare trimmed features of two utterances, along the path with the least distortion."""
    path, pair_db = align(recorded.mel, synthesized.mel)
    log_f0_pairs, voicing_errors = pitch_of_pairs(recorded, synthesized, path[:, 0], path[:, 1])
    return UtteranceMetrics(
        float(pair_db.mean()),
        log_f0_pairs,
        voicing_errors,
        recorded_s=len(recorded.wave) / sample_rate_hz(),
        synthesized_s=len(synthesized.wave) / sample_rate_hz(),
        log_f0=[np.log(features.f0_hz[features.voiced]) for features in (recorded, synthesized)],
    )


def pitch_of_pairs(
    recorded: AcousticFeatures, other: AcousticFeatures, row: np.ndarray, column: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return log-F0 and voicing errors of pairs of frames, int [P]; see `FrameErrors`."""
    voiced, other_voiced = recorded.voiced[row], other.voiced[column]
    both = voiced & other_voiced
    log_f0 = np.log([recorded.f0_hz[row][both], other.f0_hz[column][both]], dtype=np.float64)
    return log_f0, voiced != other_voiced


def mean_frame_errors(utterances: Sequence[FrameErrors]) -> Means:
    """Return means over utterances, of F0 and voicing over pairs."""
    f0_errors = np.concatenate([np.diff(of.log_f0_pairs, axis=0)[0] for of in utterances])
    voicing_errors = np.concatenate([metrics.voicing_errors for metrics in utterances])
    # Two utterances may have no frame that is voiced in both, as an untrained voice shows.
    log_f0_rmse = float(np.sqrt(np.mean(f0_errors**2))) if len(f0_errors) else None
    return {
        "mel_cepstral_distortion": float(np.mean([metrics.mcd_db for metrics in utterances])),
        "log_f0_rmse": log_f0_rmse,
        "voicing_error": float(voicing_errors.mean()),
    }


def corpus_metrics(utterances: Sequence[UtteranceMetrics]) -> Means:
    """Return the metrics of a corpus; see `mean_frame_errors` and `pitch_statistics`."""
    recorded_s = np.array([metrics.recorded_s for metrics in utterances])
    synthesized_s = np.array([metrics.synthesized_s for metrics in utterances])
    ratios = synthesized_s / recorded_s
    within = (ratios >= DURATION_BOUNDS[0]) & (ratios <= DURATION_BOUNDS[1])
    lengths = {
        "duration_ratio": float(synthesized_s.sum() / recorded_s.sum()),
        "duration_ratio_mean": float(ratios.mean()),
        "duration_ratio_deviation": float(ratios.std()),
        "duration_within_bounds": float(within.mean()),
    }
    return mean_frame_errors(utterances) | pitch_statistics(utterances) | lengths


def pitch_statistics(utterances: Sequence[UtteranceMetrics]) -> Means:
    """Return difference of means, ratio of spreads and correlation of ln F0, None if unvoiced.

    Spreads and correlation are of deviations from an utterance's own mean: over several speakers
    the differences between voices would hide a flat intonation.
    """
    both = [metrics for metrics in utterances if all(map(len, metrics.log_f0))]
    if not both:
        return dict.fromkeys(("log_f0_correlation", "log_f0_difference", "log_f0_spread_ratio"))
    means = np.array([[log_f0.mean() for log_f0 in metrics.log_f0] for metrics in both])
    rows = list(zip(both, means, strict=True))
    spread = [
        np.concatenate([metrics.log_f0[side] - mean[side] for metrics, mean in rows]).std()
        for side in (0, 1)
    ]
    pairs = np.concatenate([of.log_f0_pairs - mean[:, None] for of, mean in rows], axis=1)
    correlation = spread_ratio = None
    if spread[0] > 0.0:
        spread_ratio = float(spread[1] / spread[0])
    if pairs.size and np.all(pairs.std(axis=1) > 0.0):
        correlation = float(np.corrcoef(pairs[0], pairs[1])[0, 1])
    return {
        "log_f0_correlation": correlation,
        "log_f0_difference": float(np.mean(means[:, 1] - means[:, 0])),
        "log_f0_spread_ratio": spread_ratio,
    }


def log_mel_error_db(recorded_mel: np.ndarray, copied_mel: np.ndarray) -> float:
    """Return the mean absolute difference in dB of two log-mels, [T, 80], in their loud frames."""
    level_db = DECIBELS_PER_NEPER * recorded_mel.mean(axis=1)
    loud = level_db > level_db.max() - TOP_DB
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
            wave = recorded.wave[: len(copied.wave)]
            scores = {name: score(wave, copied.wave) for name, score in SCORES.items()}
        frame_db = distortion_db(mel_cepstrum(recorded.mel), mel_cepstrum(copied.mel))
        log_f0, voicing = pitch_of_pairs(recorded, copied, frames, frames)
        mel_error_db = log_mel_error_db(recorded.mel, copied.mel)
        mcd_db = float(frame_db.mean())
        metrics.append(CopyMetrics(mcd_db, log_f0, voicing, mel_error_db, scores))
    return metrics


def mean_copy_metrics(utterances: Sequence[CopyMetrics]) -> Means:
    """Return the metrics of copies, of the scores over the utterances that have them."""
    means: Means = {}
    for name in utterances[0].scores:
        values = [value for copy in utterances if (value := copy.scores[name]) is not None]
        means[name] = float(np.mean(values)) if values else None
    means["log_mel_error"] = float(np.mean([metrics.mel_error_db for metrics in utterances]))
    return means | mean_frame_errors(utterances)


# PESQ and STOI are undefined for some copies. A mean over other utterances in each column would
# compare sentences instead of vocoders. So a score that any column lacks for an utterance is
# removed from that utterance in all of them.
def with_common_scores(
    columns: Mapping[str, Sequence[Sequence[CopyMetrics]]],
) -> dict[str, list[list[CopyMetrics]]]:
    """Return the metrics by column, seed and utterance, with scores only where all have them."""
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
    """Return notes on the utterances that a score leaves out."""
    notes = []
    for score, needs in NEEDS.items():
        count = sum(metrics.scores[score] is None for metrics in utterances)
        if count and is_installed(score):
            name = METRICS[score].label
            notes.append(f"{name} is without {count} of {len(utterances)} utterances: it {needs}")
    return notes


def missing_packages(scores: Iterable[str]) -> list[str]:
    """Return a note on the scores whose packages are not installed; empty if all are."""
    missing = [score for score in scores if not is_installed(score)]
    if not missing:
        return []
    names = " and ".join(METRICS[score].label for score in missing)
    packages = " ".join(chain.from_iterable(PACKAGES[score] for score in missing))
    return [f"to measure {names}, install: pip install {packages}"]
