"""Copy synthesis of a few held-out utterances: sounds and pictures of the recording, the vocoder
and Griffin-Lim.
"""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.format import DECIBELS_PER_NEPER, HOP_SAMPLES
from myxtts.audio.griffin_lim import GriffinLim
from myxtts.audio.mel import log_mel
from myxtts.audio.vocoder import vocode
from myxtts.audio.wav import write_wav
from myxtts.batch import CONTEXT_FRAMES, TAUGHT_VOCODER_FEATURES
from myxtts.files import numbered_name, replaced_folder, tolerate_full_disk
from myxtts.models.vocoder import log_mel_of
from myxtts.report.plots import mels, png_bytes
from myxtts.report.reporter import TensorBoard
from myxtts.report.samples import sound_file
from myxtts.tasks.base import Examples

SEED = (0, 0)  # of the vocoder's noise and of Griffin-Lim's phases


class LogMelError:
    """Mean absolute error of the log-mels of vocoded segments against those of the recordings; see
    `tasks.base.Metric`.

    Utterances count equally.
    """

    def __init__(self) -> None:
        self._errors_db: list[float] = []

    @staticmethod
    def measure(batch: dict, outputs: dict) -> dict:
        error = tf.abs(log_mel_of(outputs["wave"]) - batch.get("target_mel", batch["mel"]))
        return {"error": error[:, CONTEXT_FRAMES:-CONTEXT_FRAMES]}

    def update(self, batch: dict, measured: dict) -> None:
        by_row = measured["error"].numpy().mean(axis=(1, 2)) * DECIBELS_PER_NEPER
        self._errors_db += by_row[batch["frames"].numpy() > 0].tolist()

    def result(self) -> dict[str, float]:
        return {"log_mel_error_db": float(np.mean(self._errors_db))}


class VocoderSampler:
    """Turns the log-mels of the same held-out utterances back into waves at each call; see
    `tasks.base.Sampler`.

    Args:
        network: a `Vocoder`.
        examples: VOCODER_FEATURES of whole utterances, or TAUGHT_VOCODER_FEATURES; the first rows
            are used.
        folder: gets `step-000500/` with a PNG and three WAVs for each utterance, such as
            `1-NAME.recording.wav`.
        tensorboard: gets the same sounds and pictures.
    """

    def __init__(
        self, network: keras.Model, examples: Examples, folder: Path, tensorboard: TensorBoard
    ):
        self._network, self._seed = network, tf.constant(SEED)
        self._log_mel = tf.function(
            log_mel, input_signature=[tf.TensorSpec([None, None], tf.float32)], autograph=False
        )
        examples = examples.sampled(TAUGHT_VOCODER_FEATURES)
        batch = examples.batch
        self._names = [numbered_name(number, name) for number, name in enumerate(examples.ids, 1)]
        frames = batch["frames"].numpy()
        self._mels = [
            mel[:length] for mel, length in zip(batch["mel"].numpy(), frames, strict=True)
        ]
        waves = batch["wave"].numpy()
        self._recordings = [
            wave[: length * HOP_SAMPLES] for wave, length in zip(waves, frames, strict=True)
        ]
        self._griffin_lim = vocode(GriffinLim(), batch["mel"], batch["frames"], SEED)
        self._folder, self._tensorboard = folder, tensorboard

    def trace(self) -> None:
        """Compile synthesis, and the log-mels of the pictures."""
        self._network.synthesize.get_concrete_function()
        self._log_mel.get_concrete_function()

    def __call__(self, step: int) -> None:
        samples = replaced_folder(self._folder / f"step-{step:06d}")
        with tolerate_full_disk(f"the samples of step {step}"), samples as folder:
            rows = zip(self._names, self._recordings, self._mels, self._griffin_lim, strict=True)
            for name, recording, mel, griffin_lim in rows:
                vocoded = self._network.synthesize(mel[None], self._seed).numpy()[0]
                self._write(
                    folder,
                    step,
                    name,
                    {"recording": recording, "vocoder": vocoded, "griffin-lim": griffin_lim},
                )

    def _write(self, folder: Path, step: int, name: str, waves: dict[str, np.ndarray]) -> None:
        """Write the sounds of an utterance, and their log-mels as one picture."""
        for kind, wave in waves.items():
            write_wav(folder / sound_file(name, kind), wave)
            self._tensorboard.sound(step, f"{kind}/{name}", wave)
        picture = mels(
            {kind: self._log_mel(wave[None]).numpy()[0] for kind, wave in waves.items()}, name
        )
        (folder / f"{name}.png").write_bytes(png_bytes(picture))
        self._tensorboard.picture(step, f"mels/{name}", picture)
