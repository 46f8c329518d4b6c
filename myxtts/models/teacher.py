"""The network of a voice as the teacher of another run."""

import tensorflow as tf

from myxtts.audio.format import MEL_BANDS
from myxtts.audio.mel import SILENCE
from myxtts.models.xtts import XTTS


class TeacherModel:
    """The network of a frozen voice on one device, with the options of its own run."""

    def __init__(self, network: XTTS, ode_steps: int, guidance: float):
        self.network = network
        self._ode_steps = ode_steps
        self._guidance = guidance

    def align(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """See `XTTS.align`."""
        return self.network.align(features)

    def speak(
        self, features: dict[str, tf.Tensor], padded_frames: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """See `XTTS.speak`."""
        return self.network.speak(features, padded_frames, self._ode_steps, self._guidance)

    def teacher_forced_mel(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        """See `XTTS.teacher_forced_mel`."""
        return self.network.teacher_forced_mel(features, self._ode_steps, self._guidance)


class NullTeacher:
    """Stands in for a `TeacherModel` and computes nothing, to time producing without a teacher.

    Its features have the shapes of a teacher's. Nothing is aligned, spoken mels are silent, and the
    others are the recordings' own.
    """

    def align(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        return tf.zeros(tf.shape(features["mel"])[:2], tf.int64)

    def speak(
        self, features: dict[str, tf.Tensor], padded_frames: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        shape = [tf.shape(features["tokens"])[0], padded_frames]
        mel = tf.fill([*shape, MEL_BANDS], SILENCE)
        return mel, tf.zeros(shape), tf.zeros(shape, tf.int64)

    def teacher_forced_mel(self, features: dict[str, tf.Tensor]) -> tf.Tensor:
        return features["mel"]
