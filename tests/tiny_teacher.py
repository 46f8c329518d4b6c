"""A teacher without training, and what a producer makes with it."""

import numpy as np
import tensorflow as tf

from myxtts.data.features import FeatureExtractor
from myxtts.data.producer import trace_produce
from tests.test_vocoder import inputs
from tests.tiny import build_model


class UntrainedTeacher:
    """What a producer needs of a teacher: see `training.load_teacher.FrozenVoice`."""

    def __init__(self, device: str, ode_steps: int = 2, guidance: float = 1.0):
        self.network = build_model(device=device)
        self._ode_steps, self._guidance = ode_steps, guidance
        self.align = self.network.align

    def speak(self, batch, padded_frames):
        return self.network.speak(batch, padded_frames, self._ode_steps, self._guidance)

    def teacher_forced_mel(self, batch):
        return self.network.teacher_forced_mel(batch, self._ode_steps, self._guidance)


def spoken_inputs() -> dict:
    """Return TTS_INPUTS of the waves of `tests.test_vocoder.inputs`, each the reference of another row."""
    waves = inputs()
    count = tf.constant([4, 3, 0, 5])
    texts = {"tokens": tf.tile(tf.constant([[1, 4, 5, 6, 2]]), [4, 1]), "token_count": count}
    reference = {"reference_pcm": waves["pcm"][::-1], "reference_samples": waves["samples"][::-1]}
    return waves | texts | reference | {"language": tf.constant([0, 1, 0, 0]), "step_tokens": tf.constant(12.0)}


def produced(device: str, extractor: FeatureExtractor, batch: dict) -> dict[str, np.ndarray]:
    """Return the features that a producer on a device makes of a batch, which may have more fields than it takes."""
    with tf.device(device):
        batch = {name: tf.identity(batch[name]) for name in extractor.inputs}
    return {name: value.numpy() for name, value in trace_produce(device, extractor)(batch).features.items()}
