"""The features of a vocoder, which are computed on the data device."""

from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from myxtts.audio.excitation import pulse_phasor
from myxtts.audio.format import HOP_SAMPLES, PAD_SAMPLES, frame_count
from myxtts.audio.mel import SILENCE, log_mel_of_frames
from myxtts.audio.pitch import f0
from myxtts.base.portable_ops import fold_in, indices, stateless_uniform
from myxtts.batches.contract import TTS_INPUTS, VOCODER_INPUTS
from myxtts.devicefeed.contract import FeatureExtractor, LoadFrozen
from myxtts.tasks.features import tts_features
from myxtts.tasks.vocoder.contract import CONTEXT_FRAMES, TAUGHT_VOCODER_FEATURES, VOCODER_FEATURES

# Margin on each side of a segment's samples: its first and last mel and F0 look 1.5 and 2.7 hops
# beyond it.
MARGIN_HOPS = 3


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
        return FeatureExtractor(VOCODER_INPUTS, VOCODER_FEATURES, produce, sizes)
    taught = partial(taught_vocoder_features, segment_frames=segment_frames, at_random=at_random)
    return FeatureExtractor(
        TTS_INPUTS, TAUGHT_VOCODER_FEATURES, taught, sizes, load_frozen=load_teacher
    )


def vocoder_features(
    waves: dict, segment_frames: int | None = None, at_random: bool = False
) -> dict:
    """Compute VOCODER_FEATURES from VOCODER_INPUTS: log-mel and F0 of a segment of each utterance.

    They are those of the whole utterance, with CONTEXT_FRAMES more on each side of a segment.
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


# A first frame is chosen for each utterance: 0 for whole utterances, else in the middle of the
# spare frames or at random among them, minus the context. The samples of the stretch and its
# margins are then gathered by index. Indices outside the utterance are reflected at its ends, as
# the mel of a whole utterance does; F0 takes silence there, so both versions of the wave are
# returned.
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
