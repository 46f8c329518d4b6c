"""Load the teacher of a run on its data devices."""

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import tensorflow as tf

from myxtts.audio.format import MEL_BANDS
from myxtts.audio.mel import SILENCE
from myxtts.config.schema import Config
from myxtts.models.layers import parameter_count
from myxtts.placement.audit import require_device
from myxtts.tasks.registry import task_of
from myxtts.training.load_model import load_model
from myxtts.training.runs import Teacher

log = logging.getLogger(__name__)


class FrozenVoice:
    """The network of a teacher on one device, with the options of its own run.

    Args:
        config: of the run that is taught.
        sizes: named dimensions of a typical batch, by which an alignment search is chosen for the
            device.

    Raises:
        CheckpointError: the weights are damaged, or belong to another architecture.
        PlacementError: a variable of the network is on another device.
        ConfigError: XLA is required for the alignment search, and does not work on the device.
    """

    def __init__(self, teacher: Teacher, config: Config, device: str, sizes: dict[str, int]):
        settings, precision = teacher.settings, config.teacher.produce_precision
        self.network = load_model(teacher.checkpoint, teacher.metadata, device, "tts", precision)
        require_device(device, ((v.path, v.value) for v in self.network.variables))
        self._ode_steps, self._guidance = settings.model.ode_steps, settings.model.guidance
        task_of(settings).tune(
            settings.model_copy(update={"training": config.training}), self.network, device, sizes
        )
        log.info(
            "teacher        %s, step %d, on %s: %s, %s parameters, %s",
            *(teacher.run, teacher.metadata["step"], device, task_of(settings).describe(settings)),
            *(f"{parameter_count(self.network):,}", precision),
        )

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


class NoVoice:
    """Takes the place of a `FrozenVoice` and computes nothing: what is left of producing is its
    time without a teacher.

    Its features have the shapes of a teacher's. Nothing is aligned, spoken mels are silent, and the
    others the recordings' own.
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


def teacher_loader(
    teacher: Teacher | None, config: Config, sizes: dict[str, int]
) -> Callable[[str], Any] | None:
    """Return what loads the teacher on a device, once for each; None without a teacher. See
    `FrozenVoice`.
    """
    return None if teacher is None else cache(partial(_load, teacher, config, sizes))


def _load(teacher: Teacher, config: Config, sizes: dict[str, int], device: str) -> FrozenVoice:
    return FrozenVoice(teacher, config, device, sizes)
