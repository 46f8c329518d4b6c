"""Speech recognition: log-mel in, text out, by CTC."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras

from myxtts.audio.spec_augment import spec_augment
from myxtts.audio.vocoder import VocoderProtocol
from myxtts.config.schema import Config
from myxtts.data.features import FeatureExtractor, LoadFrozen, asr_extractor
from myxtts.data.manifest import Vocabulary
from myxtts.models import asr
from myxtts.models.build import build_asr
from myxtts.report.reporter import TensorBoard
from myxtts.tasks.asr_samples import ASRSampler, ErrorRateMetric
from myxtts.tasks.base import KEPT_ARRAYS, Examples, Metric, dimensions, kept_bytes


class ASRTask:
    """An encoder with CTC: see models/asr.py."""

    name = "asr"
    components: tuple[str, ...] = ("subsampling", "encoder", "output")
    supports_xla = False  # TensorFlow's CTC loss on sparse labels has no XLA kernel
    augmentation = "--noise-probability 0.5"

    def has_small_operations(self, config: Config) -> bool:
        return False

    def extractor(
        self, config: Config, training: bool, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor:
        if not training:
            return asr_extractor()
        settings = config.asr
        mask: Callable | None = None
        if settings.time_masks or settings.frequency_masks:
            mask = partial(
                spec_augment,
                time_masks=settings.time_masks,
                time_fraction=settings.time_mask_fraction,
                frequency_masks=settings.frequency_masks,
                frequency_bands=settings.frequency_mask_bands,
            )
        return asr_extractor(mask, config.augmentation, settings.subsampling)

    def segment_s(self, config: Config) -> None:
        return None

    def sample_extractor(self, config: Config, load_teacher: LoadFrozen | None = None) -> None:
        return None

    def build(
        self,
        config: Config,
        vocabulary: Vocabulary,
        training: bool = True,
        precision: str = "float32",
    ) -> keras.Model:
        settings: dict[str, Any] = {
            "precision": config.training.precision,
            "dropout": config.model.dropout,
        }
        return build_asr(
            config.model.model_size,
            len(vocabulary.symbols),
            config.asr.encoder,
            config.asr.subsampling,
            **(settings if training else {"precision": precision}),
        )

    def tune(
        self, config: Config, network: keras.Model, device: str, sizes: dict[str, int]
    ) -> dict[str, str]:
        return {}

    def activation_bytes(self, config: Config, sizes: dict[str, int]) -> int:
        size = asr.SIZES[config.model.model_size]
        positions = sizes["frames"] // config.asr.subsampling * size.blocks
        return sizes["batch"] * size.channels * positions * KEPT_ARRAYS * kept_bytes(config)

    def describe(self, config: Config) -> str:
        return dimensions(f"{self.name}, {config.asr.encoder}", config, asr.SIZES)

    def metric(self, vocabulary: Vocabulary) -> Callable[[], Metric]:
        return partial(ErrorRateMetric, vocabulary.symbols)

    def sampler(
        self,
        config: Config,
        vocabulary: Vocabulary,
        network: keras.Model,
        examples: Examples,
        folder: Path,
        tensorboard: TensorBoard,
        load_vocoder: Callable[[], VocoderProtocol],
    ) -> ASRSampler:
        return ASRSampler(network, examples, vocabulary.symbols, folder, tensorboard)
