"""What a run trains, to a run that does not know what it trains: batches, network, and what can be seen of it."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Protocol

import keras

from myxtts.audio.format import HOP_SAMPLES, SAMPLE_RATE_HZ
from myxtts.audio.spec_augment import spec_augment
from myxtts.config.schema import Config
from myxtts.data.manifest import Vocabulary
from myxtts.data.producer import FeatureExtractor, asr_extractor, tts_extractor
from myxtts.models import asr as recognisers
from myxtts.models import xtts
from myxtts.models.build import build_asr, build_xtts
from myxtts.training.asr_samples import ASRSamples, TranscriptMetric
from myxtts.training.state import TrainingState
from myxtts.training.tts_samples import TTSSamples, synthesis_options
from myxtts.training.validation import Metric


class Task(Protocol):
    """A model with all that a run needs of it.

    Attributes:
        parts: of the network, by its `parts()`.
    """

    parts: tuple[str, ...]

    def extractor(self, config: Config, training: bool) -> FeatureExtractor:
        """How batches are made; augmented for training alone."""

    def build(self, config: Config, vocabulary: Vocabulary, training: bool = True) -> keras.Model:
        """The network with its first weights, in float32 where it is not for training."""

    def describe(self, config: Config) -> str:
        """The network's dimensions, for the log."""

    def judge(self, vocabulary: Vocabulary) -> Callable[[], Metric] | None:
        """Makes what measures held-out batches beside their loss, if anything does."""

    def samples(
        self, config: Config, vocabulary: Vocabulary, folder: Path, batch: dict, ids: list[str], texts: list[str], board
    ) -> Callable[[TrainingState], None]:
        """What shows the model's work on held-out utterances, in files and on TensorBoard."""


class TTSTask:
    """From text and a reference of a speaker to speech."""

    parts = ("reference_encoder", "text_encoder", "prosody", "decoder")

    def extractor(self, config: Config, training: bool) -> FeatureExtractor:
        return tts_extractor(config.data.vtlp if training else 0.0)

    def build(self, config: Config, vocabulary: Vocabulary, training: bool = True) -> keras.Model:
        model = config.model
        settings = {
            "precision": config.training.precision,
            "dropout": model.dropout,
            "reference_dropout": model.reference_dropout,
            "cfg_dropout": model.cfg_dropout,
            "segment_frames": round(model.segment_seconds * SAMPLE_RATE_HZ / HOP_SAMPLES),
            "recompute": model.gradient_checkpointing,
        }
        return build_xtts(
            model.model_size, len(vocabulary.symbols), len(vocabulary.languages), **(settings if training else {})
        )

    def describe(self, config: Config) -> str:
        return described("tts", config, xtts.SIZES)

    def judge(self, vocabulary: Vocabulary) -> None:
        return None

    def samples(self, config, vocabulary, folder, batch, ids, texts, board) -> TTSSamples:
        return TTSSamples(folder, batch, ids, texts, synthesis_options(config.model), board)


class ASRTask:
    """From speech to text."""

    parts = ("subsampling", "encoder", "output")

    def extractor(self, config: Config, training: bool) -> FeatureExtractor:
        asr = config.asr
        if not training or not (asr.time_masks or asr.frequency_masks):
            return asr_extractor()
        return asr_extractor(
            partial(
                spec_augment,
                time_masks=asr.time_masks,
                time_fraction=asr.time_mask_fraction,
                frequency_masks=asr.frequency_masks,
                frequency_bands=asr.frequency_mask_bands,
            )
        )

    def build(self, config: Config, vocabulary: Vocabulary, training: bool = True) -> keras.Model:
        asr = config.asr
        settings = {
            "precision": config.training.precision,
            "dropout": config.model.dropout,
            "sync_batch_norm": asr.sync_batch_norm,
        }
        return build_asr(
            config.model.model_size,
            len(vocabulary.symbols),
            asr.encoder,
            asr.subsampling,
            **(settings if training else {}),
        )

    def describe(self, config: Config) -> str:
        return described(f"asr, {config.asr.encoder}", config, recognisers.SIZES)

    def judge(self, vocabulary: Vocabulary) -> Callable[[], Metric]:
        return partial(TranscriptMetric, vocabulary.symbols)

    def samples(self, config, vocabulary, folder, batch, ids, texts, board) -> ASRSamples:
        return ASRSamples(folder, batch, ids, vocabulary.symbols, board)


def described(what: str, config: Config, sizes: Mapping) -> str:
    """Such as "voice, tiny, 144 channels, 3 encoder blocks"."""
    size = config.model.model_size
    dimensions = (f"{number} {name.replace('_', ' ')}" for name, number in asdict(sizes[size]).items())
    return ", ".join((what, size, *dimensions))


TASKS: Mapping[str, Task] = {"tts": TTSTask(), "asr": ASRTask()}


def task_of(config: Config) -> Task:
    return TASKS[config.model.task]
