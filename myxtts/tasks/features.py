"""Stage D: the functions that turn waves into the features of each task."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from myxtts import batch
from myxtts.audio.excitation import pulse_phasor
from myxtts.audio.format import HOP_SAMPLES, MEL_BANDS, PAD_SAMPLES, frame_count
from myxtts.audio.loudness import with_loudness
from myxtts.audio.mel import SILENCE, log_mel, log_mel_of_frames, warped_mel_filters
from myxtts.audio.pitch import f0
from myxtts.base.portable_ops import float32_matmul, fold_in, indices, on_host, stateless_uniform
from myxtts.batch import CONTEXT_FRAMES, TEXT
from myxtts.config.schema import AugmentationConfig
from myxtts.corpus.texts import teacher_row_count
from myxtts.devicefeed.contract import FeatureExtractor, LoadFrozen
from myxtts.tasks.augmentation import augment, perturb_speed

VTLP_COSINES = 9
NO_AUGMENTATION = AugmentationConfig()
# A teacher may need a fourth more frames than the longest utterance of the bucket.
TEACHER_SLACK = 4
TEACHER_STRETCH = 1.0 + 1.0 / TEACHER_SLACK
# on each side of a segment's samples: more than its first and last mel and F0 look at (1.5, 2.7)
MARGIN_HOPS = 3


def at_loudness(extractor: FeatureExtractor, lufs: float | None) -> FeatureExtractor:
    """Return an extractor that first gives a loudness to utterances and references; None: as is."""
    if lufs is None:
        return extractor
    lengths = {"pcm": "samples", "reference_pcm": "reference_samples"}

    def produce(waves: dict, *network: Any) -> dict:
        # Not rounded to 16 bits again: the features convert them to float32 in any case.
        scaled = {
            pcm: with_loudness(tf.cast(waves[pcm], tf.float32) / 32768.0, lufs, waves[samples])
            for pcm, samples in lengths.items()
            if pcm in waves
        }
        in_steps = {pcm: wave * 32768.0 for pcm, wave in scaled.items()}
        return extractor.produce(waves | in_steps, *network)

    return replace(extractor, produce=produce)


def tts_extractor(
    vtlp: float = 0.0,
    augmentation: AugmentationConfig = NO_AUGMENTATION,
    load_teacher: LoadFrozen | None = None,
    teacher_fraction: float = 0.0,
) -> FeatureExtractor:
    """Return the extractor of `tts_features`, or of `taught_tts_features` if there is a teacher.

    It aligns the recordings, and speaks `teacher_fraction` of the rows of a batch.
    """
    if load_teacher is None:
        produce = partial(tts_features, vtlp=vtlp, augmentation=augmentation)
        return FeatureExtractor(batch.TTS_INPUTS, batch.TTS_FEATURES, produce)
    taught = partial(
        taught_tts_features, vtlp=vtlp, augmentation=augmentation, teacher_fraction=teacher_fraction
    )
    contracts = batch.TAUGHT_TTS_INPUTS, batch.TAUGHT_TTS_FEATURES
    stretch = TEACHER_STRETCH if teacher_fraction else 1.0
    return FeatureExtractor(*contracts, taught, max_stretch=stretch, load_frozen=load_teacher)


def asr_extractor(
    mask: Callable | None = None,
    augmentation: AugmentationConfig = NO_AUGMENTATION,
    subsampling: int = 1,
) -> FeatureExtractor:
    produce = partial(asr_features, mask=mask, augmentation=augmentation, subsampling=subsampling)
    stretch = 1.0 / (1.0 - augmentation.speed_perturbation)
    return FeatureExtractor(batch.ASR_INPUTS, batch.ASR_FEATURES, produce, max_stretch=stretch)


def vocoder_extractor(
    segment_frames: int | None = None,
    at_random: bool = False,
    load_teacher: LoadFrozen | None = None,
) -> FeatureExtractor:
    """Return the extractor of `vocoder_features`, or with a teacher `taught_vocoder_features`.

    Segments are at random places, by the batch's seed, or in the middle; without `segment_frames`
    whole utterances, without context.
    """
    sizes = {}
    if segment_frames is not None:
        frames = segment_frames + 2 * CONTEXT_FRAMES
        sizes = {"segment_frames": frames, "segment_samples": frames * HOP_SAMPLES}
    if load_teacher is None:
        produce = partial(vocoder_features, segment_frames=segment_frames, at_random=at_random)
        return FeatureExtractor(batch.VOCODER_INPUTS, batch.VOCODER_FEATURES, produce, sizes)
    taught = partial(taught_vocoder_features, segment_frames=segment_frames, at_random=at_random)
    contracts = batch.TTS_INPUTS, batch.TAUGHT_VOCODER_FEATURES
    return FeatureExtractor(*contracts, taught, sizes, load_frozen=load_teacher)


def vocoder_features(
    waves: dict, segment_frames: int | None = None, at_random: bool = False
) -> dict:
    """Compute VOCODER_FEATURES from VOCODER_INPUTS: log-mel and F0 of a segment of each utterance.

    These are the mel and F0 of the whole utterance, cut out. CONTEXT_FRAMES more are cut out on
    each side of a segment.
    """
    stretch = _cut_stretch(waves, segment_frames, at_random)
    # As in a whole utterance, its mel sees its reflection outside, and F0 zeros.
    reflected = MARGIN_HOPS * HOP_SAMPLES - PAD_SAMPLES
    mel = log_mel_of_frames(stretch.wave[:, reflected:-reflected])
    rows, samples = tf.unstack(tf.shape(stretch.wave))
    f0_hz, _ = f0(stretch.silent_outside, tf.fill([rows], samples))
    mel = tf.where(stretch.real[:, :, None], mel, SILENCE)
    return _features_of_stretch(waves, stretch, mel, f0_hz)


def taught_vocoder_features(
    waves: dict, teacher: Any, segment_frames: int | None, at_random: bool
) -> dict:
    """Compute TAUGHT_VOCODER_FEATURES from TTS_INPUTS, with `XTTS.teacher_forced_mel`.

    The teacher takes whole utterances, so that its mels are those of synthesis also at the ends of
    a segment.
    """
    whole = tts_features(waves)
    stretch = _cut_stretch(waves, segment_frames, at_random)
    last = tf.maximum(tf.cast(whole["frames"], tf.int64) - 1, 0)[:, None]

    def cut(values, frame):
        return tf.gather(values, tf.clip_by_value(frame, 0, last), batch_dims=1)

    mel, target_mel = (
        tf.where(stretch.real[:, :, None], cut(values, stretch.frame), SILENCE)
        for values in (teacher.teacher_forced_mel(whole), whole["mel"])
    )
    hops = tf.range(tf.shape(stretch.wave)[1] // HOP_SAMPLES)
    frame = stretch.frame[:, :1] - MARGIN_HOPS + tf.cast(hops, tf.int64)
    f0_hz = tf.where((frame >= 0) & (frame <= last), cut(whole["f0_hz"], frame), 0.0)
    return _features_of_stretch(waves, stretch, mel, f0_hz) | {"target_mel": target_mel}


class _Stretch(NamedTuple):
    """A stretch of each utterance: the number of each frame within it, and whether it is inside.

    The wave is continued by its reflection, or by silence, with MARGIN_HOPS more on each side.
    """

    frame: tf.Tensor
    real: tf.Tensor
    wave: tf.Tensor
    silent_outside: tf.Tensor


def _cut_stretch(waves: dict, segment_frames: int | None, at_random: bool) -> _Stretch:
    """Cut the segments and their context out of a batch's waves; see `vocoder_extractor`."""
    frames = tf.cast(frame_count(waves["samples"]), tf.int64)
    if segment_frames is None:
        first = tf.zeros_like(frames)
        length = frame_count(tf.shape(waves["pcm"])[1])
    else:
        spare = tf.cast(tf.maximum(frames - segment_frames, 0), tf.float32)
        place = 0.5 * spare
        if at_random:
            uniform = stateless_uniform(tf.shape(frames), fold_in(waves["seed"], "segment"))
            place = uniform * (spare + 1.0)
        first = tf.cast(place, tf.int64) - CONTEXT_FRAMES
        length = segment_frames + 2 * CONTEXT_FRAMES
    offset = indices((length + 2 * MARGIN_HOPS) * HOP_SAMPLES)
    sample = (first[:, None] - MARGIN_HOPS) * HOP_SAMPLES + offset
    last = tf.cast(waves["samples"], tf.int64)[:, None] - 1
    inside = (sample >= 0) & (sample <= last)
    reflected = tf.abs(sample)
    reflected = tf.where(reflected > last, 2 * last - reflected, reflected)
    index = tf.clip_by_value(reflected, 0, tf.maximum(last, 0))
    # Converted before the gather, which has no GPU kernel for int16.
    wave = tf.gather(tf.cast(waves["pcm"], tf.float32) / 32768.0, index, batch_dims=1)
    frame = first[:, None] + indices(length)
    real = (frame >= 0) & (frame < frames[:, None])
    return _Stretch(frame, real, wave, tf.where(inside, wave, 0.0))


def _features_of_stretch(waves: dict, stretch: _Stretch, mel, f0_hz) -> dict:
    """Return VOCODER_FEATURES; `f0_hz` also has the margins."""
    rows, frames = tf.unstack(tf.shape(stretch.frame))
    real = stretch.real
    phasor = pulse_phasor(stretch.silent_outside, f0_hz)
    hops = tf.reshape(stretch.silent_outside, [rows, -1, HOP_SAMPLES])[:, MARGIN_HOPS:-MARGIN_HOPS]
    return {name: waves[name] for name in ("seed", "step_frames")} | {
        "mel": mel,
        "f0_hz": tf.where(real, f0_hz[:, MARGIN_HOPS:-MARGIN_HOPS], 0.0),
        "pulse_phasor": tf.where(real[:, :, None], phasor[:, MARGIN_HOPS:-MARGIN_HOPS], 0.0),
        "wave": tf.reshape(tf.where(real[:, :, None], hops, 0.0), [rows, frames * HOP_SAMPLES]),
        "frames": frame_count(waves["samples"]),
    }


def asr_features(
    waves: dict,
    mask: Callable | None = None,
    augmentation: AugmentationConfig = NO_AUGMENTATION,
    subsampling: int = 1,
) -> dict:
    """Compute ASR_FEATURES from ASR_INPUTS: log-mel spectrograms.

    `mask` is a function of (mel, frames, seed), such as `spec_augment`. A higher speed leaves each
    text the frames that CTC needs after the subsampling.
    """
    wave = tf.cast(waves["pcm"], tf.float32) / 32768.0
    samples = waves["samples"]
    seed = waves["seed"]
    if augmentation.speed_perturbation:
        fewest = fewest_samples(waves["tokens"], waves["token_count"], subsampling)
        wave, samples = perturb_speed(
            wave, samples, fewest, fold_in(seed, "speed"), augmentation.speed_perturbation
        )
    wave = augment(wave, samples, seed, augmentation)
    frames = frame_count(samples)
    mel = log_mel(wave, samples)
    if mask is not None:
        mel = mask(mel, frames, seed)
    return {name: waves[name] for name in TEXT} | {"mel": mel, "frames": frames}


def fewest_samples(tokens, token_count, subsampling: int):
    """Return the samples that CTC needs for each text, as `manifest.LengthRule` counts them.

    int32 [batch] of int32 [batch, tokens] and [batch], all in host memory.
    """
    with on_host():
        # CTC does not see begin and end.
        labels = tokens[:, 1:-1]
        count = tf.maximum(token_count - 2, 0)
        equal = tf.cast(labels[:, 1:] == labels[:, :-1], tf.int32)
        inside = tf.sequence_mask(count - 1, tf.shape(equal)[1], tf.int32)
        needed = count + tf.reduce_sum(equal * inside, axis=1)
        return ((needed - 1) * subsampling + 1) * HOP_SAMPLES


def tts_features(
    waves: dict, vtlp: float = 0.0, augmentation: AugmentationConfig = NO_AUGMENTATION
) -> dict:
    """Compute TTS_FEATURES from TTS_INPUTS: log-mel spectrograms and F0.

    `vtlp` is the largest warp, see `vtlp_warp`. Only references are augmented.
    """
    warp = vtlp_warp(waves["seed"], tf.shape(waves["pcm"])[0], vtlp) if vtlp else None
    features = {name: waves[name] for name in TEXT}
    return features | _recording(waves, warp) | _reference(waves, warp, augmentation)


def taught_tts_features(
    waves: dict,
    teacher: Any,
    vtlp: float,
    augmentation: AugmentationConfig,
    teacher_fraction: float,
) -> dict:
    """Compute TAUGHT_TTS_FEATURES from TAUGHT_TTS_INPUTS.

    The teacher speaks the last rows of the batch, as many as `teacher_row_count` says, within
    TEACHER_STRETCH times the frames of the bucket. The other rows are recordings, whose path is the
    teacher's alignment. The teacher's references are not augmented.
    """
    size = tf.shape(waves["pcm"])[0]
    recordings = size - teacher_row_count(size, teacher_fraction)
    warp = vtlp_warp(waves["seed"], size, vtlp) if vtlp else None
    texts = {name: waves[name] for name in TEXT}
    spoken = texts | _reference(waves, warp)
    by_row = [name for name in spoken if batch.TTS_FEATURES[name].dims[:1] == ("batch",)]
    first = spoken | {name: spoken[name][:recordings] for name in by_row}
    of_recordings = None if warp is None else (warp[0][:recordings], warp[1][:recordings])
    recorded = {name: waves[name][:recordings] for name in ("pcm", "samples")}
    recording = _recording(recorded, of_recordings)
    recording["path"] = teacher.align(first | recording)
    utterances = {name: waves[name] for name in ("frames", "utterance_tokens")}
    features = texts | _reference(waves, warp, augmentation) | recording | utterances
    if not teacher_fraction:
        return features
    frames = tf.shape(recording["mel"])[1]
    further = frames // TEACHER_SLACK
    last = spoken | {name: spoken[name][recordings:] for name in by_row}
    mel, f0_hz, path = teacher.speak(last, frames + further)

    def join(of_recordings, of_teacher, padding):
        shape = tf.concat([[recordings, further], tf.shape(of_recordings)[2:]], axis=0)
        slack = tf.fill(shape, tf.cast(padding, of_recordings.dtype))
        padded = tf.concat([of_recordings, slack], axis=1)
        return tf.concat([padded, of_teacher], axis=0)

    return features | {
        "mel": join(recording["mel"], mel, SILENCE),
        "f0_hz": join(recording["f0_hz"], f0_hz, 0.0),
        "path": join(recording["path"], path, -1),
    }


def _recording(waves: dict, warp: tuple | None) -> dict:
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


def _reference(
    waves: dict, warp: tuple | None, augmentation: AugmentationConfig = NO_AUGMENTATION
) -> dict:
    """Return log-mel and frames of the references; `warp` as above."""
    wave = tf.cast(waves["reference_pcm"], tf.float32) / 32768.0
    wave = augment(wave, waves["reference_samples"], waves["seed"], augmentation)
    return {
        "reference": log_mel(wave, waves["reference_samples"], warp and warp[1]),
        "reference_frames": frame_count(waves["reference_samples"]),
    }


def vtlp_warp(seed, rows, limit):
    """Draw the warp (Jaitly & Hinton 2013) and the spectral gains of each row.

    The batch's seed determines all draws, which are uniform. The logarithm of the gain is a sum of
    VTLP_COSINES cosines over the mel bands, each with an amplitude of up to 2 * limit.

    Returns factors on all frequencies, float32 [rows], from exp(-limit) to exp(limit), and mel
    filters, float32 [rows, bins, bands].
    """
    uniform = stateless_uniform
    factor = tf.exp(uniform([rows], fold_in(seed, "frequencies"), -limit, limit))
    spectrum = fold_in(seed, "spectrum")
    amplitudes = uniform([rows, VTLP_COSINES], spectrum, -2.0 * limit, 2.0 * limit)
    phase = np.pi * np.arange(VTLP_COSINES)[:, None] * (np.arange(MEL_BANDS) + 0.5) / MEL_BANDS
    gain = tf.exp(float32_matmul(amplitudes, tf.constant(np.cos(phase), tf.float32)))
    return factor, warped_mel_filters(factor) * gain[:, None, :]
