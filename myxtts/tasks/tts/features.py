"""The features of a voice, which are computed on the data device."""

from functools import partial
from typing import Any

import tensorflow as tf

from myxtts.audio.mel import SILENCE
from myxtts.batches.contract import TAUGHT_TTS_INPUTS, TEXT, TTS_INPUTS
from myxtts.config.schema import AugmentationConfig
from myxtts.corpus.texts import teacher_row_count
from myxtts.devicefeed.contract import FeatureExtractor, LoadFrozen
from myxtts.tasks.features import (
    NO_AUGMENTATION,
    recording_features,
    reference_features,
    tts_features,
    vtlp_warp,
)
from myxtts.tasks.tts.contract import TAUGHT_TTS_FEATURES, TTS_FEATURES

# A teacher may need a fourth more frames than the longest utterance of the bucket.
TEACHER_SLACK = 4
TEACHER_STRETCH = 1.0 + 1.0 / TEACHER_SLACK


def tts_extractor(
    vtlp: float = 0.0,
    augmentation: AugmentationConfig = NO_AUGMENTATION,
    load_teacher: LoadFrozen | None = None,
    teacher_fraction: float = 0.0,
) -> FeatureExtractor:
    """Return the extractor of `tts_features`, or of `taught_tts_features` if there is a teacher."""
    if load_teacher is None:
        produce = partial(tts_features, vtlp=vtlp, augmentation=augmentation)
        return FeatureExtractor(TTS_INPUTS, TTS_FEATURES, produce)
    taught = partial(
        taught_tts_features, vtlp=vtlp, augmentation=augmentation, teacher_fraction=teacher_fraction
    )
    stretch = TEACHER_STRETCH if teacher_fraction else 1.0
    return FeatureExtractor(
        TAUGHT_TTS_INPUTS,
        TAUGHT_TTS_FEATURES,
        taught,
        max_stretch=stretch,
        load_frozen=load_teacher,
    )


# The batch comes in with recordings in its first rows and, in its last rows, texts for the teacher
# to speak. References serve both. The teacher aligns the recordings, then speaks its rows, which
# may need more frames than any recording. So the recordings get a fourth more frames of padding,
# and both parts are joined row by row. The teacher hears references without augmentation; the
# student, whose features these are, gets them augmented.
def taught_tts_features(
    waves: dict,
    teacher: Any,
    vtlp: float,
    augmentation: AugmentationConfig,
    teacher_fraction: float,
) -> dict:
    """Compute TAUGHT_TTS_FEATURES from TAUGHT_TTS_INPUTS.

    The teacher speaks the last rows, as many as `teacher_row_count` says, within TEACHER_STRETCH
    times the frames of the bucket. The path of the other rows is its alignment.
    """
    size = tf.shape(waves["pcm"])[0]
    recordings = size - teacher_row_count(size, teacher_fraction)
    warp = vtlp_warp(waves["seed"], size, vtlp) if vtlp else None
    texts = {name: waves[name] for name in TEXT}
    spoken = texts | reference_features(waves, warp)
    by_row = [name for name in spoken if TTS_FEATURES[name].dims[:1] == ("batch",)]
    first = spoken | {name: spoken[name][:recordings] for name in by_row}
    of_recordings = None if warp is None else (warp[0][:recordings], warp[1][:recordings])
    recorded = {name: waves[name][:recordings] for name in ("pcm", "samples")}
    recording = recording_features(recorded, of_recordings)
    recording["path"] = teacher.align(first | recording)
    utterances = {name: waves[name] for name in ("frames", "utterance_tokens")}
    features = texts | reference_features(waves, warp, augmentation) | recording | utterances
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
