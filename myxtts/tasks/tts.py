"""Text to speech: text and a reference of a speaker in, log-mel out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.vocoder import VocoderProtocol
from myxtts.config.schema import Config
from myxtts.data.features import FeatureExtractor, LoadFrozen, tts_extractor
from myxtts.data.manifest import Vocabulary
from myxtts.models import xtts
from myxtts.models.build import build_xtts
from myxtts.report.reporter import TensorBoard
from myxtts.tasks.alignment_choice import choose_alignment_search
from myxtts.tasks.base import KEPT_ARRAYS, Examples, dimensions, kept_bytes
from myxtts.tasks.tts_samples import TTSSampler, synthesis_options

KEPT_SCORES = 2  # arrays of the size of attention scores, and of the alignment search's


class TTSTask:
    """XTTS: see models/xtts.py."""

    name = "tts"
    components: tuple[str, ...] = ("reference_encoder", "text_encoder", "prosody", "decoder")
    supports_xla = True
    augmentation = "--vtlp 0.1"

    def has_small_operations(self, config: Config) -> bool:
        return config.model.model_size == "tiny"

    def extractor(
        self, config: Config, training: bool, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor:
        if not training:
            return tts_extractor(load_teacher=load_teacher)
        fraction = config.teacher.teacher_fraction
        return tts_extractor(config.data.vtlp, config.augmentation, load_teacher, fraction)

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
        model = config.model
        settings: dict[str, Any] = {
            "precision": config.training.precision,
            "dropout": model.dropout,
            "reference_dropout": model.reference_dropout,
            "cfg_dropout": model.cfg_dropout,
            "segment_frames": round(model.segment_seconds * SAMPLE_RATE_HZ / HOP_SAMPLES),
            "gradient_checkpointing": model.gradient_checkpointing,
            "taught": config.teacher.teacher is not None,
        }
        symbols, languages = len(vocabulary.symbols), len(vocabulary.languages)
        return build_xtts(
            model.model_size,
            symbols,
            languages,
            **(settings if training else {"precision": precision}),
        )

    def tune(
        self, config: Config, network: keras.Model, device: str, sizes: dict[str, int]
    ) -> dict[str, str]:
        if "path" in network.BATCH_FIELDS:
            return {"alignment": "by the teacher"}
        training = config.training
        choice = choose_alignment_search(
            training.alignment_search, training.compile == "xla", device, sizes
        )
        network.alignment_search = choice.search
        return {"alignment": choice.line}

    def activation_bytes(self, config: Config, sizes: dict[str, int]) -> int:
        size, frames, tokens = xtts.SIZES[config.model.model_size], sizes["frames"], sizes["tokens"]
        segment = min(frames, round(config.model.segment_seconds * SAMPLE_RATE_HZ / HOP_SAMPLES))
        positions = segment // xtts.REDUCTION_FACTOR * (size.decoder_blocks + size.flow_blocks)
        blocks = size.channels * (positions + tokens * 2 * size.encoder_blocks)
        blocks *= 1 if config.model.gradient_checkpointing else KEPT_ARRAYS
        scores = frames * tokens + size.heads * tokens**2 * size.encoder_blocks
        return sizes["batch"] * (blocks + KEPT_SCORES * scores) * kept_bytes(config)

    def describe(self, config: Config) -> str:
        return dimensions(self.name, config, xtts.SIZES)

    def metric(self, vocabulary: Vocabulary) -> None:
        return None

    def sampler(
        self,
        config: Config,
        vocabulary: Vocabulary,
        network: keras.Model,
        examples: Examples,
        folder: Path,
        tensorboard: TensorBoard,
        load_vocoder: Callable[[], VocoderProtocol],
    ) -> TTSSampler:
        return TTSSampler(
            network, examples, synthesis_options(config.model), load_vocoder(), folder, tensorboard
        )
