"""Vocoding: log-mel in, wave out."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.audio_file import write_wav
from myxtts.audio.format import DECIBELS_PER_NEPER, FFT_SAMPLES, HOP_SAMPLES, frames_in
from myxtts.audio.mel import log_mel
from myxtts.audio.vocoder import GriffinLim, LoadVocoder, vocode
from myxtts.config.schema import Config
from myxtts.corpus.manifest import Vocabulary
from myxtts.devicefeed.contract import FeatureExtractor, LoadFrozen
from myxtts.report import plots
from myxtts.report.samples import sound_file
from myxtts.tasks.base import KEPT_ARRAYS, Metric, Sampler, Task, kept_bytes
from myxtts.tasks.features import at_loudness
from myxtts.tasks.vocoder import network as vocoder
from myxtts.tasks.vocoder.contract import CONTEXT_FRAMES, TAUGHT_VOCODER_FEATURES
from myxtts.tasks.vocoder.features import vocoder_extractor
from myxtts.tasks.vocoder.network import build_vocoder, mel_and_spectrum

KEPT_SPECTRA = 60  # float32, by filters, projection and losses
# Equal noise and phases of Griffin-Lim at all steps, so that samples differ by the weights alone.
SEED = (0, 0)


class VocoderTask(Task):
    """A harmonic-plus-noise filter in the STFT domain: see tasks/vocoder/network.py."""

    name = "vocoder"
    product = "a vocoder"
    options = ("seeds",)
    sizes = vocoder.SIZES
    components: tuple[str, ...] = ("pitch_head", "filter")

    def extractor(
        self, config: Config, training: bool, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor:
        frames = frames_in(self.segment_s(config))
        extractor = vocoder_extractor(frames, training, load_teacher)
        return at_loudness(extractor, config.data.loudness)

    def segment_s(self, config: Config) -> float:
        return config.vocoder.vocoder_segment_seconds

    def sample_extractor(
        self, config: Config, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor:
        # Without a segment: a listener judges whole utterances, not the part that a step takes.
        extractor = vocoder_extractor(load_teacher=load_teacher)
        return at_loudness(extractor, config.data.loudness)

    def build(
        self, config: Config, vocabulary: Vocabulary, inference="", weights: Collection[str] = ()
    ) -> keras.Model:
        return build_vocoder(
            config.model.model_size,
            inference or config.training.precision,
            refine_mel=config.teacher.teacher is not None,
            gradient_checkpointing=config.model.gradient_checkpointing and not inference,
        )

    def activation_bytes(self, config: Config, sizes: dict[str, int]) -> int:
        size = self.sizes[config.model.model_size]
        positions = sizes["batch"] * sizes["segment_frames"]
        kept = 1 if config.model.gradient_checkpointing else KEPT_ARRAYS
        blocks = size.channels * size.blocks * kept * kept_bytes(config)
        return positions * (blocks + KEPT_SPECTRA * (FFT_SAMPLES // 2 + 1) * 4)

    def metric(self, vocabulary: Vocabulary) -> Callable[[], Metric]:
        return LogMelError

    def sampler(self, config: Config, vocabulary: Vocabulary, load_vocoder: LoadVocoder):
        return VocoderSampler


class LogMelError:
    """Mean absolute error of the log-mels of vocoded segments, in dB; utterances count equally."""

    def __init__(self) -> None:
        self._errors_db: list[float] = []

    @staticmethod
    def measure(batch: dict, outputs: dict) -> dict:
        mel, _ = mel_and_spectrum(outputs["wave"])
        error = tf.abs(mel - batch.get("target_mel", batch["mel"]))
        return {"error": error[:, CONTEXT_FRAMES:-CONTEXT_FRAMES]}

    def update(self, batch: dict, measured: dict) -> None:
        by_row = measured["error"].numpy().mean(axis=(1, 2)) * DECIBELS_PER_NEPER
        # Rows without an utterance pad the last batch, and have no error.
        self._errors_db += by_row[batch["frames"].numpy() > 0].tolist()

    def result(self) -> dict[str, float]:
        return {"log_mel_error_db": float(np.mean(self._errors_db))}


class VocoderSampler(Sampler):
    """Copies held-out utterances of VOCODER_FEATURES or TAUGHT_VOCODER_FEATURES, taken whole.

    Each has three sounds, such as `1-NAME.recording.wav`, and their log-mels as one picture.
    """

    FIELDS = TAUGHT_VOCODER_FEATURES

    def __init__(self, *output: Any):
        super().__init__(*output)
        self._seed = tf.constant(SEED)
        self._log_mel = tf.function(
            log_mel, input_signature=[tf.TensorSpec([None, None], tf.float32)], autograph=False
        )
        mels, frames = self._batch["mel"], self._batch["frames"]
        waves = self._batch["wave"].numpy()
        # With fixed phases it is the same at all steps, so it is made once.
        griffin_lim = vocode(GriffinLim(), mels, frames, SEED)
        rows = zip(self._names, mels.numpy(), waves, griffin_lim, frames.numpy(), strict=True)
        self._rows = [
            (name, mel[:length], wave[: length * HOP_SAMPLES], copy)
            for name, mel, wave, copy, length in rows
        ]

    def trace(self) -> None:
        self._network.copy.get_concrete_function()
        self._log_mel.get_concrete_function()

    def write(self, step: int, folder: Path) -> None:
        for name, mel, recording, griffin_lim in self._rows:
            vocoded = self._network.copy(mel[None], self._seed).numpy()[0]
            waves = {"recording": recording, "vocoder": vocoded, "griffin-lim": griffin_lim}
            log_mels = {}
            for kind, wave in waves.items():
                write_wav(folder / sound_file(name, kind), wave)
                self._tensorboard.sound(step, f"{kind}/{name}", wave)
                log_mels[kind] = self._log_mel(wave[None]).numpy()[0]
            picture = plots.mels(log_mels, name)
            self.write_picture(step, folder / f"{name}.png", f"mels/{name}", picture)
