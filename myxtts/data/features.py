"""Stage D: the functions that turn waves into the features of each task."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import tensorflow as tf

from myxtts.audio.format import MEL_BANDS, frame_count
from myxtts.audio.mel import log_mel, warped_mel_filters
from myxtts.audio.pitch import f0
from myxtts.batch import ASR_FEATURES, ASR_INPUTS, TEXT, TTS_FEATURES, TTS_INPUTS, Field
from myxtts.matmul import float32_matmul
from myxtts.seeds import fold_in

VTLP_COSINES = 9  # spectral gain curve over the mel bands, the constant included


@dataclass(frozen=True)
class FeatureExtractor:
    """The batch contracts of a task and the function between them.

    Attributes:
        inputs, features: contracts of the batches before and after `produce`.
        produce: TensorFlow function from a batch of `inputs` to a batch of `features`.
    """

    inputs: dict[str, Field]
    features: dict[str, Field]
    produce: Callable[[dict], dict]


def tts_extractor(vtlp: float = 0.0) -> FeatureExtractor:
    """Return the extractor of `tts_features`."""
    return FeatureExtractor(TTS_INPUTS, TTS_FEATURES, partial(tts_features, vtlp=vtlp))


def asr_extractor(mask: Callable | None = None) -> FeatureExtractor:
    """Return the extractor of `asr_features`."""
    return FeatureExtractor(ASR_INPUTS, ASR_FEATURES, partial(asr_features, mask=mask))


def asr_features(waves: dict, mask: Callable | None = None) -> dict:
    """Compute ASR_FEATURES from ASR_INPUTS: log-mel spectrograms.

    Args:
        mask: (mel, frames, seed) -> masked mel, such as `spec_augment`.
    """
    frames = frame_count(waves["samples"])
    mel = log_mel(tf.cast(waves["pcm"], tf.float32) / 32768.0, waves["samples"])
    if mask is not None:
        mel = mask(mel, frames, waves["seed"])
    return {name: waves[name] for name in TEXT} | {"mel": mel, "frames": frames}


def tts_features(waves: dict, vtlp: float = 0.0) -> dict:
    """Compute TTS_FEATURES from TTS_INPUTS: log-mel spectrograms and F0.

    Args:
        vtlp: largest warp, see `vtlp_warp`; 0 turns it off.
    """
    target, reference = (tf.cast(waves[name], tf.float32) / 32768.0 for name in ("pcm", "reference_pcm"))
    f0_hz, _ = f0(target, waves["samples"])
    filters = None
    if vtlp:
        factor, filters = vtlp_warp(waves["seed"], tf.shape(target)[0], vtlp)
        f0_hz *= factor[:, None]
    return {name: waves[name] for name in TEXT} | {
        "mel": log_mel(target, waves["samples"], filters),
        "frames": frame_count(waves["samples"]),
        "f0_hz": f0_hz,
        "reference": log_mel(reference, waves["reference_samples"], filters),
        "reference_frames": frame_count(waves["reference_samples"]),
    }


def vtlp_warp(seed, rows, limit):
    """Draw a warp for each row: vocal tract length perturbation (Jaitly & Hinton 2013) and a random spectral gain.

    The batch's seed determines all draws, which are uniform. The logarithm of the gain is a sum of VTLP_COSINES
    cosines over the mel bands, each with an amplitude of up to 2 * limit.

    Returns:
        Factor on all frequencies, float32 [rows], from exp(-limit) to exp(limit).
        Mel filters, float32 [rows, bins, bands].
    """
    factor = tf.exp(tf.random.stateless_uniform([rows], fold_in(seed, "frequencies"), -limit, limit))
    amplitudes = tf.random.stateless_uniform([rows, VTLP_COSINES], fold_in(seed, "spectrum"), -2.0 * limit, 2.0 * limit)
    phase = np.pi * np.arange(VTLP_COSINES)[:, None] * (np.arange(MEL_BANDS) + 0.5) / MEL_BANDS
    gain = tf.exp(float32_matmul(amplitudes, tf.constant(np.cos(phase), tf.float32)))
    return factor, warped_mel_filters(factor) * gain[:, None, :]
