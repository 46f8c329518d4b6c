"""The network of a voice as the teacher of another run."""

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

import tensorflow as tf

from myxtts.audio.format import mel_bands
from myxtts.audio.mel import SILENCE
from myxtts.base.portable_ops import fold_in, stateless_normal
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.schema import Config
from myxtts.devicefeed.audit import require_device
from myxtts.tasks import loading
from myxtts.tasks.layers import parameter_count
from myxtts.tasks.registry import task_of
from myxtts.tasks.tts import alignment, prosody
from myxtts.tasks.tts.network import TEMPERATURE, XTTS

log = logging.getLogger(__name__)


class TeacherModel:
    """The network of a frozen voice on one device; `SynthesisOptions` has the other arguments."""

    def __init__(self, network: XTTS, ode_steps: int, guidance: float):
        self.network = network
        self._ode_steps, self._guidance = ode_steps, guidance
        self.align = network.align

    def speak(self, batch, padded_frames):
        """Speak texts with the voices of their references, within a number of frames.

        From the seed and the fields of TTS_FEATURES for text and reference. Returns log-mel float32
        [B, T, 80]; F0 in Hz, float32 [B, T], 0 where unvoiced; path int64 [B, T].
        """
        # As in synthesis, but within a number of frames that the host knows before, so that it
        # waits for no shape: tokens that would exceed it are shortened in proportion. Prosody is
        # the average one, not drawn. The F0 of a frame is its token's, where the token is voiced.
        speaker, encoded, mean, mask = self.network.encode_texts(batch)
        predicted = self.network.predict_prosody(encoded, speaker, mask).average()
        real_token = tf.cast(mask, tf.float32)[:, :, 0]
        limit = tf.cast(padded_frames, tf.float32)
        ends = prosody.token_ends_within(predicted.log_duration, real_token, limit)
        path = alignment.path_within(ends, padded_frames)
        durations = alignment.durations_of_path(path, tf.shape(mean)[1])
        mel = self.mel_of(batch, speaker, encoded, mean, predicted, durations, path)
        by_token = tf.stack([predicted.voiced, predicted.pitch], axis=-1)
        voiced, pitch = tf.unstack(alignment.gather_rows(by_token, path), axis=-1)
        # The voiced part of a token comes first: only its length is known.
        position = alignment.position_in_token(path, alignment.frame_indices(path), durations)
        is_voiced = (position[:, :, 0] < voiced) & (path >= 0)
        return mel, tf.where(is_voiced, prosody.pitch_hz(pitch), 0.0), path

    def teacher_forced_mel(self, batch):
        """Compute the mel of the network with durations, pitch and energy of recordings.

        TTS_FEATURES -> float32 [B, T, 80], padded with silence (Shen et al. 2018, "Natural TTS
        synthesis": mels for a vocoder).
        """
        speaker, encoded, mean, _ = self.network.encode_texts(batch)
        path = self.network.align(batch)
        recorded, durations = self.network.recorded_prosody(batch, path, speaker)
        return self.mel_of(batch, speaker, encoded, mean, recorded, durations, path)

    def mel_of(self, batch, speaker, encoded, mean, token_prosody, durations, path):
        """Return the log-mel of encoded texts with a prosody on a path, as `speak`."""
        frame = alignment.frame_indices(path)
        condition = self.network.decode(
            encoded, mean, token_prosody, durations, path, frame, speaker.voice
        )
        seed = fold_in(batch["seed"], "teacher noise")
        noise = TEMPERATURE * stateless_normal(tf.shape(condition.mel), seed)
        return self.network.solve_flow(condition, noise, self._ode_steps, self._guidance)


class NullTeacher:
    """Returns features of the shapes of a teacher's without work, to time producing without it."""

    def align(self, batch):
        return tf.zeros(tf.shape(batch["mel"])[:2], tf.int64)

    def speak(self, batch, padded_frames):
        shape = [tf.shape(batch["tokens"])[0], padded_frames]
        mel = tf.fill([*shape, mel_bands()], SILENCE)
        return mel, tf.zeros(shape), tf.zeros(shape, tf.int64)

    def teacher_forced_mel(self, batch):
        return batch["mel"]


def load_teacher(
    teacher: TrainedRun, config: Config, sizes: dict[str, int], device: str
) -> TeacherModel:
    """Load the network of a teacher, with the options of its own run; raise as `load_network`.

    Also raises PlacementError and ConfigError if the device is another, or cannot run the
    alignment search that is chosen for batches of the named `sizes`.
    """
    settings = teacher.record.settings
    precision = config.teacher.produce_precision
    network = loading.load_network(teacher, device, "tts", precision)
    require_device(device, ((v.path, v.value) for v in network.variables))
    task = task_of(settings)
    task.tune(settings.model_copy(update={"training": config.training}), network, device, sizes)
    log.info(
        "teacher        %s, step %d, on %s: %s, %s parameters, %s",
        teacher.path,
        teacher.record.step,
        device,
        task.describe(settings),
        f"{parameter_count(network):,}",
        precision,
    )
    return TeacherModel(network, settings.model.ode_steps, settings.model.guidance)


def teacher_loader(
    teacher: TrainedRun | None, config: Config, sizes: dict[str, int]
) -> Callable[[str], Any] | None:
    """Return what loads the teacher on a device, once for each; None without a teacher."""
    if teacher is None:
        return None
    return cache(lambda device: load_teacher(teacher, config, sizes, device))
