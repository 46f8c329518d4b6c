"""Vocoding: log-mel in, wave out."""

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.format import DECIBELS_PER_NEPER, FFT_SAMPLES, HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.mel import log_mel
from myxtts.audio.vocoder import GriffinLim, VocoderProtocol, vocode
from myxtts.batch import CONTEXT_FRAMES, TAUGHT_VOCODER_FEATURES
from myxtts.config.schema import Config, VocoderConfig
from myxtts.data.audio_file import write_wav
from myxtts.data.features import FeatureExtractor, LoadFrozen, vocoder_extractor
from myxtts.data.manifest import Vocabulary
from myxtts.files import numbered_name, replaced_folder, tolerate_full_disk
from myxtts.models import vocoder
from myxtts.models.discriminators import AdversarialSettings, hidden_values
from myxtts.models.vocoder import build_vocoder, log_mel_of
from myxtts.report.plots import mels, png_bytes
from myxtts.report.reporter import TensorBoard
from myxtts.report.samples import sound_file
from myxtts.tasks.base import KEPT_ARRAYS, Examples, Metric, Task, dimensions, kept_bytes

# float32 arrays of the size of a spectrum that filters, projection and losses keep.
KEPT_SPECTRA = 60
# Samples of all steps have the same noise and the same phases of Griffin-Lim.
SEED = (0, 0)


class VocoderTask(Task):
    """A harmonic-plus-noise filter in the STFT domain: see models/vocoder.py."""

    name = "vocoder"
    components: tuple[str, ...] = ("pitch_head", "filter")
    supports_xla = False

    def extractor(
        self, config: Config, training: bool, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor:
        return vocoder_extractor(segment_frames_of(config), training, load_teacher)

    def segment_s(self, config: Config) -> float:
        return config.vocoder.vocoder_segment_seconds

    def sample_extractor(
        self, config: Config, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor:
        # Without a segment: a listener judges whole utterances, not the part that a step takes.
        return vocoder_extractor(load_teacher=load_teacher)

    def build(
        self,
        config: Config,
        vocabulary: Vocabulary,
        training: bool = True,
        precision: str = "float32",
    ) -> keras.Model:
        model = config.model
        is_taught = config.teacher.teacher is not None
        if not training:
            return build_vocoder(model.model_size, precision, refine_mel=is_taught)
        return build_vocoder(
            model.model_size,
            refine_mel=is_taught,
            precision=config.training.precision,
            gradient_checkpointing=model.gradient_checkpointing,
            adversarial=adversarial_settings_of(config.vocoder),
        )

    def activation_bytes(self, config: Config, sizes: dict[str, int]) -> int:
        size = vocoder.SIZES[config.model.model_size]
        positions = sizes["batch"] * sizes["segment_frames"]
        kept = 1 if config.model.gradient_checkpointing else KEPT_ARRAYS
        blocks = size.channels * size.blocks * kept * kept_bytes(config)
        judged = 0
        if config.vocoder.discriminators:
            samples = (sizes["segment_frames"] - 2 * CONTEXT_FRAMES) * HOP_SAMPLES
            # Of recording and generated wave, and their difference.
            judged = sizes["batch"] * hidden_values(samples) * (2 * kept_bytes(config) + 4)
        return positions * (blocks + KEPT_SPECTRA * (FFT_SAMPLES // 2 + 1) * 4) + judged

    def describe(self, config: Config) -> str:
        return dimensions(self.name, config, vocoder.SIZES)

    def metric(self, vocabulary: Vocabulary) -> Callable[[], Metric]:
        return LogMelError

    def sampler(
        self,
        config: Config,
        vocabulary: Vocabulary,
        network: keras.Model,
        examples: Examples,
        folder: Path,
        tensorboard: TensorBoard,
        load_vocoder: Callable[[], VocoderProtocol],
    ) -> "VocoderSampler":
        return VocoderSampler(network, examples, folder, tensorboard)


def adversarial_settings_of(settings: VocoderConfig) -> AdversarialSettings | None:
    """Return how the network is trained against discriminators; None if there are none."""
    if not settings.discriminators:
        return None
    return AdversarialSettings(
        settings.adversarial_weight,
        settings.feature_matching_weight,
        settings.adversarial_warmup_steps,
        settings.discriminator_lr_ratio,
    )


def segment_frames_of(config: Config) -> int:
    """Return the length of the segments that are trained on, without their context."""
    return round(config.vocoder.vocoder_segment_seconds * SAMPLE_RATE_HZ / HOP_SAMPLES)


class LogMelError:
    """Mean absolute error of the log-mels of vocoded segments, in dB; see `tasks.base.Metric`.

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
        # Rows without an utterance pad the last batch, and have no error.
        self._errors_db += by_row[batch["frames"].numpy() > 0].tolist()

    def result(self) -> dict[str, float]:
        return {"log_mel_error_db": float(np.mean(self._errors_db))}


class VocoderSampler:
    """Copies the same held-out utterances at each call; see `tasks.base.Sampler`.

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
        self._network = network
        self._seed = tf.constant(SEED)
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
        # With fixed phases it is the same at all steps, so it is made once.
        self._griffin_lim = vocode(GriffinLim(), batch["mel"], batch["frames"], SEED)
        self._folder = folder
        self._tensorboard = tensorboard

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
                waves = {"recording": recording, "vocoder": vocoded, "griffin-lim": griffin_lim}
                self._write(folder, step, name, waves)

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
