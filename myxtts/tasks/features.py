"""Stage D: the functions that turn waves into the features of each task."""

from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from myxtts.audio.format import frame_count, mel_bands
from myxtts.audio.loudness import with_loudness
from myxtts.audio.mel import log_mel, warped_mel_filters
from myxtts.audio.pitch import f0
from myxtts.base.portable_ops import float32_matmul, fold_in, stateless_uniform
from myxtts.batches.contract import TEXT
from myxtts.config.schema import AugmentationConfig
from myxtts.devicefeed.contract import FeatureExtractor
from myxtts.tasks.augmentation import augment

VTLP_COSINES = 9
NO_AUGMENTATION = AugmentationConfig()


def at_loudness(extractor: FeatureExtractor, lufs: float | None) -> FeatureExtractor:
    """Return an extractor that first gives a loudness to utterances and references; None: as is."""
    if lufs is None:
        return extractor
    lengths = {"pcm": "samples", "reference_pcm": "reference_samples"}

    def produce(waves: dict, *network: Any) -> dict:
        # Not rounded to 16 bits again: the features convert them to float32 in any case.
        scaled = dict(waves)
        for pcm, samples in lengths.items():
            if pcm in waves:
                wave = tf.cast(waves[pcm], tf.float32) / 32768.0
                scaled[pcm] = with_loudness(wave, lufs, waves[samples]) * 32768.0
        return extractor.produce(scaled, *network)

    return replace(extractor, produce=produce)


def recording_features(waves: dict, warp: tuple | None) -> dict:
    """Return log-mel, frames and F0 of recordings; `warp` is of `vtlp_warp`, or None."""
    wave = tf.cast(waves["pcm"], tf.float32) / 32768.0
    f0_hz, _ = f0(wave, waves["samples"])
    if warp is not None:
        f0_hz = f0_hz * warp[0][:, None]
    return {
        "mel": log_mel(wave, waves["samples"], warp and warp[1]),
        "frames": frame_count(waves["samples"]),
        "f0_hz": f0_hz,
    }


def vtlp_warp(seed, rows, limit):
    """Draw the warp (Jaitly & Hinton 2013) and the spectral gains of each row.

    The logarithm of the gain is a sum of VTLP_COSINES cosines over the mel bands, each with an
    amplitude of up to 2 * limit. Returns factors on all frequencies, float32 [rows], from
    exp(-limit) to exp(limit), and mel filters, float32 [rows, bins, bands].
    """
    uniform = stateless_uniform
    factor = tf.exp(uniform([rows], fold_in(seed, "frequencies"), -limit, limit))
    spectrum = fold_in(seed, "spectrum")
    amplitudes = uniform([rows, VTLP_COSINES], spectrum, -2.0 * limit, 2.0 * limit)
    phase = np.pi * np.arange(VTLP_COSINES)[:, None] * (np.arange(mel_bands()) + 0.5) / mel_bands()
    gain = tf.exp(float32_matmul(amplitudes, tf.constant(np.cos(phase), tf.float32)))
    return factor, warped_mel_filters(factor) * gain[:, None, :]


def tts_features(
    waves: dict, vtlp: float = 0.0, augmentation: AugmentationConfig = NO_AUGMENTATION
) -> dict:
    """Compute TTS_FEATURES from TTS_INPUTS: log-mel spectrograms and F0.

    `vtlp` is the largest warp, see `vtlp_warp`. Only references are augmented.
    """
    warp = vtlp_warp(waves["seed"], tf.shape(waves["pcm"])[0], vtlp) if vtlp else None
    features = {name: waves[name] for name in TEXT}
    return (
        features | recording_features(waves, warp) | reference_features(waves, warp, augmentation)
    )


def reference_features(
    waves: dict, warp: tuple | None, augmentation: AugmentationConfig = NO_AUGMENTATION
) -> dict:
    """Return log-mel and frames of the references; `warp` as above."""
    wave = tf.cast(waves["reference_pcm"], tf.float32) / 32768.0
    wave = augment(wave, waves["reference_samples"], waves["seed"], augmentation)
    return {
        "reference": log_mel(wave, waves["reference_samples"], warp and warp[1]),
        "reference_frames": frame_count(waves["reference_samples"]),
    }
