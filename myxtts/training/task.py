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
from myxtts.data.manifest import Tables
from myxtts.data.producer import Recipe, recogniser_recipe, voice_recipe
from myxtts.models import asr as recognisers
from myxtts.models import xtts
from myxtts.models.build import build_recogniser, build_xtts
from myxtts.training.asr_samples import TranscriptJudge, Transcripts
from myxtts.training.state import TrainingState
from myxtts.training.tts_samples import VoiceSamples, manner_of
from myxtts.training.validation import Judge


class Task(Protocol):
    """A model with all that a run needs of it.

    Attributes:
        parts: of the network, by its `parts()`.
    """

    parts: tuple[str, ...]

    def recipe(self, config: Config, training: bool) -> Recipe:
        """How batches are made; augmented for training alone."""

    def build(self, config: Config, tables: Tables, training: bool = True) -> keras.Model:
        """The network with its first weights, in float32 where it is not for training."""

    def describe(self, config: Config) -> str:
        """The network's dimensions, for the log."""

    def judge(self, tables: Tables) -> Callable[[], Judge] | None:
        """Makes what measures held-out batches beside their loss, if anything does."""

    def samples(
        self, config: Config, tables: Tables, folder: Path, batch: dict, ids: list[str], texts: list[str], board
    ) -> Callable[[TrainingState], None]:
        """What shows the model's work on held-out utterances, in files and on TensorBoard."""


class Voice:
    """From text and a reference of a speaker to speech."""

    parts = ("reference_encoder", "text_encoder", "prosody", "decoder")

    def recipe(self, config: Config, training: bool) -> Recipe:
        return voice_recipe(config.data.voice_augmentation if training else 0.0)

    def build(self, config: Config, tables: Tables, training: bool = True) -> keras.Model:
        model = config.model
        settings = {
            "precision": config.training.precision,
            "dropout": model.dropout,
            "reference_dropout": model.reference_dropout,
            "condition_dropout": model.condition_dropout,
            "segment_frames": round(model.segment_seconds * SAMPLE_RATE_HZ / HOP_SAMPLES),
            "recompute": model.recompute_activations,
        }
        return build_xtts(
            model.model_size, len(tables.symbols), len(tables.languages), **(settings if training else {})
        )

    def describe(self, config: Config) -> str:
        return described("voice", config, xtts.SIZES)

    def judge(self, tables: Tables) -> None:
        return None

    def samples(self, config, tables, folder, batch, ids, texts, board) -> VoiceSamples:
        return VoiceSamples(folder, batch, ids, texts, manner_of(config.model), board)


class Recogniser:
    """From speech to text."""

    parts = ("subsampling", "encoder", "output")

    def recipe(self, config: Config, training: bool) -> Recipe:
        recogniser = config.recogniser
        if not training or not (recogniser.time_masks or recogniser.frequency_masks):
            return recogniser_recipe()
        return recogniser_recipe(
            partial(
                spec_augment,
                time_masks=recogniser.time_masks,
                time_share=recogniser.time_mask_share,
                frequency_masks=recogniser.frequency_masks,
                frequency_bands=recogniser.frequency_mask_bands,
            )
        )

    def build(self, config: Config, tables: Tables, training: bool = True) -> keras.Model:
        recogniser = config.recogniser
        settings = {
            "precision": config.training.precision,
            "dropout": config.model.dropout,
            "sync_batch_norm": recogniser.sync_batch_norm,
        }
        return build_recogniser(
            config.model.model_size,
            len(tables.symbols),
            recogniser.encoder,
            recogniser.subsampling,
            **(settings if training else {}),
        )

    def describe(self, config: Config) -> str:
        return described(f"recogniser, {config.recogniser.encoder}", config, recognisers.SIZES)

    def judge(self, tables: Tables) -> Callable[[], Judge]:
        return partial(TranscriptJudge, tables.symbols)

    def samples(self, config, tables, folder, batch, ids, texts, board) -> Transcripts:
        return Transcripts(folder, batch, ids, tables.symbols, board)


def described(what: str, config: Config, sizes: Mapping) -> str:
    """Such as "voice, tiny, 144 channels, 3 encoder blocks"."""
    size = config.model.model_size
    dimensions = (f"{number} {name.replace('_', ' ')}" for name, number in asdict(sizes[size]).items())
    return ", ".join((what, size, *dimensions))


TASKS: Mapping[str, Task] = {"voice": Voice(), "recogniser": Recogniser()}


def task_of(config: Config) -> Task:
    return TASKS[config.model.task]
