"""The features of a recogniser, which are computed on the data device."""

from functools import partial

import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, frame_count
from myxtts.audio.mel import log_mel
from myxtts.base.portable_ops import fold_in, on_host
from myxtts.batches.contract import ASR_INPUTS, TEXT
from myxtts.config.schema import ASRConfig, AugmentationConfig
from myxtts.devicefeed.contract import FeatureExtractor
from myxtts.tasks.asr.ctc import ctc_labels
from myxtts.tasks.augmentation import augment, perturb_speed, spec_augment
from myxtts.tasks.contract import ASR_FEATURES
from myxtts.tasks.features import NO_AUGMENTATION

NO_MASKS = ASRConfig(time_masks=0, frequency_masks=0, subsampling=1)


def asr_extractor(
    settings: ASRConfig = NO_MASKS, augmentation: AugmentationConfig = NO_AUGMENTATION
) -> FeatureExtractor:
    produce = partial(asr_features, settings=settings, augmentation=augmentation)
    stretch = 1.0 / (1.0 - augmentation.speed_perturbation)
    return FeatureExtractor(ASR_INPUTS, ASR_FEATURES, produce, max_stretch=stretch)


def asr_features(waves: dict, settings: ASRConfig, augmentation: AugmentationConfig) -> dict:
    """Compute ASR_FEATURES from ASR_INPUTS: log-mel spectrograms.

    A higher speed leaves each text the frames that CTC needs after the subsampling.
    """
    wave = tf.cast(waves["pcm"], tf.float32) / 32768.0
    samples = waves["samples"]
    seed = waves["seed"]
    if augmentation.speed_perturbation:
        fewest = fewest_samples(waves["tokens"], waves["token_count"], settings.subsampling)
        wave, samples = perturb_speed(
            wave, samples, fewest, fold_in(seed, "speed"), augmentation.speed_perturbation
        )
    wave = augment(wave, samples, seed, augmentation)
    frames = frame_count(samples)
    mel = log_mel(wave, samples)
    if settings.time_masks or settings.frequency_masks:
        mel = spec_augment(mel, frames, seed, settings)
    return {name: waves[name] for name in TEXT} | {"mel": mel, "frames": frames}


def fewest_samples(tokens, token_count, subsampling: int):
    """Return the samples that CTC needs for each text, as `manifest.LengthRule` counts them.

    int32 [batch] of int32 [batch, tokens] and [batch], all in host memory.
    """
    labels, count = ctc_labels(tokens, token_count)
    with on_host():
        equal = tf.cast(labels[:, 1:] == labels[:, :-1], tf.int32)
        inside = tf.sequence_mask(count - 1, tf.shape(equal)[1], tf.int32)
        needed = count + tf.reduce_sum(equal * inside, axis=1)
        return ((needed - 1) * subsampling + 1) * HOP_SAMPLES
