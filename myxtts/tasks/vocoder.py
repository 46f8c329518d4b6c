"""Vocoding: log-mel in, wave out."""

from collections.abc import Callable
from pathlib import Path

import keras

from myxtts.audio.format import FFT_SAMPLES, HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.vocoder import VocoderProtocol
from myxtts.batch import CONTEXT_FRAMES
from myxtts.config.schema import Config, VocoderConfig
from myxtts.data.features import FeatureExtractor, LoadFrozen, vocoder_extractor
from myxtts.data.manifest import Vocabulary
from myxtts.models import vocoder
from myxtts.models.build import build_vocoder
from myxtts.models.discriminators import AdversarialSettings, hidden_values
from myxtts.report.reporter import TensorBoard
from myxtts.tasks.base import KEPT_ARRAYS, Examples, Metric, dimensions, kept_bytes
from myxtts.tasks.vocoder_samples import LogMelError, VocoderSampler

KEPT_SPECTRA = (
    60  # float32 arrays of the size of a spectrum that filters, projection and losses keep
)


class VocoderTask:
    """A harmonic-plus-noise filter in the STFT domain: see models/vocoder.py."""

    name = "vocoder"
    components: tuple[str, ...] = ("pitch_head", "filter")
    supports_xla = False
    augmentation = ""

    def has_small_operations(self, config: Config) -> bool:
        return False

    def extractor(
        self, config: Config, training: bool, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor:
        return vocoder_extractor(segment_frames_of(config), training, load_teacher)

    def segment_s(self, config: Config) -> float:
        return config.vocoder.vocoder_segment_seconds

    def sample_extractor(
        self, config: Config, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor:
        return vocoder_extractor(load_teacher=load_teacher)

    def build(
        self,
        config: Config,
        vocabulary: Vocabulary,
        training: bool = True,
        precision: str = "float32",
    ) -> keras.Model:
        model, is_taught = config.model, config.teacher.teacher is not None
        if not training:
            return build_vocoder(model.model_size, precision, refine_mel=is_taught)
        return build_vocoder(
            model.model_size,
            refine_mel=is_taught,
            precision=config.training.precision,
            gradient_checkpointing=model.gradient_checkpointing,
            adversarial=adversarial_settings_of(config.vocoder),
        )

    def tune(
        self, config: Config, network: keras.Model, device: str, sizes: dict[str, int]
    ) -> dict[str, str]:
        return {}

    def activation_bytes(self, config: Config, sizes: dict[str, int]) -> int:
        size, positions = (
            vocoder.SIZES[config.model.model_size],
            sizes["batch"] * sizes["segment_frames"],
        )
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
    ) -> VocoderSampler:
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
