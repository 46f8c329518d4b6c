"""Speech recognition: log-mel in, text out, by CTC."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.augmentation import spec_augment
from myxtts.audio.vocoder import VocoderProtocol
from myxtts.batch import ASR_FEATURES, tensor_specs
from myxtts.config.schema import Config
from myxtts.data.features import FeatureExtractor, LoadFrozen, asr_extractor
from myxtts.data.manifest import Vocabulary
from myxtts.files import numbered_name, replaced_folder, tolerate_full_disk
from myxtts.models import asr
from myxtts.models.asr import build_asr
from myxtts.models.ctc import decoded_texts, greedy_decode
from myxtts.report.plots import mel_and_posteriors, png_bytes
from myxtts.report.reporter import TensorBoard
from myxtts.tasks.base import KEPT_ARRAYS, Examples, Metric, Task, dimensions, kept_bytes
from myxtts.text.edit_distance import error_rates
from myxtts.text.symbols import BLANK_ID, FIRST_SYMBOL_ID, SymbolTable


class ASRTask(Task):
    """An encoder with CTC: see models/asr.py."""

    name = "asr"
    components: tuple[str, ...] = ("subsampling", "encoder", "output")
    # TensorFlow's CTC loss on sparse labels has no XLA kernel.
    supports_xla = False

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

    def build(
        self,
        config: Config,
        vocabulary: Vocabulary,
        training: bool = True,
        precision: str = "float32",
    ) -> keras.Model:
        # Inference has no dropout, and computes in float32 unless it is asked for less.
        settings: dict[str, Any] = {
            "precision": config.training.precision,
            "dropout": config.model.dropout,
        }
        if not training:
            settings = {"precision": precision}
        return build_asr(
            config.model.model_size,
            len(vocabulary.symbols),
            config.asr.encoder,
            config.asr.subsampling,
            **settings,
        )

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
    ) -> "ASRSampler":
        return ASRSampler(network, examples, vocabulary.symbols, folder, tensorboard)


def references(batch: dict, symbols: SymbolTable) -> list[str]:
    """Return the true text of each row, empty for a row without an utterance."""
    return decoded_texts(batch["tokens"], batch["token_count"], symbols)


class ErrorRateMetric:
    """Character and word error rate over one pass; see `tasks.base.Metric`."""

    def __init__(self, symbols: SymbolTable):
        self._symbols = symbols
        self._references: list[str] = []
        self._transcripts: list[str] = []

    @staticmethod
    def measure(batch: dict, outputs: dict) -> dict:
        ids, counts = greedy_decode(outputs["logits"], outputs["frames"])
        return {"ids": ids, "counts": counts}

    def update(self, batch: dict, measured: dict) -> None:
        transcripts = decoded_texts(measured["ids"], measured["counts"], self._symbols)
        rows = zip(references(batch, self._symbols), transcripts, strict=True)
        for reference, transcript in rows:
            # Rows without an utterance pad the last batch, and would count as texts without errors.
            if reference:
                self._references.append(reference)
                # `Transcriber` strips as well.
                self._transcripts.append(transcript.strip())

    def result(self) -> dict[str, float]:
        return error_rates(self._references, self._transcripts)


class ASRSampler:
    """Transcribes the same held-out utterances at each call; see `tasks.base.Sampler`.

    Args:
        network: an `ASR`.
        examples: ASR_FEATURES; the first rows are used.
        symbols: of the run.
        folder: gets `step-000500/` with transcripts.txt and a PNG for each utterance.
        tensorboard: gets the same pictures.
    """

    def __init__(
        self,
        network: keras.Model,
        examples: Examples,
        symbols: SymbolTable,
        folder: Path,
        tensorboard: TensorBoard,
    ):
        def transcribe(batch):
            _, outputs = network(batch, training=False)
            return tf.nn.softmax(outputs["logits"]), outputs["frames"], *greedy_decode(**outputs)

        self._transcribe = tf.function(
            transcribe, input_signature=[tensor_specs(ASR_FEATURES)], autograph=False
        )
        examples = examples.sampled(ASR_FEATURES)
        self._batch = examples.batch
        self._ids = examples.ids
        self._symbols = symbols
        self._folder = folder
        self._tensorboard = tensorboard

    def trace(self) -> None:
        """Compile recognition and decoding."""
        self._transcribe.get_concrete_function()

    def __call__(self, step: int) -> None:
        batch = self._batch
        posteriors, positions, ids, counts = self._transcribe(batch)
        transcribed = decoded_texts(ids, counts, self._symbols)
        rows = zip(self._ids, references(batch, self._symbols), transcribed, strict=True)
        lines = [
            f"{name}\n  reference   {reference}\n  transcript  {text}\n"
            for name, reference, text in rows
        ]
        mels = batch["mel"].numpy()
        frames = batch["frames"].numpy()
        posteriors = posteriors.numpy()
        positions = positions.numpy()
        samples = replaced_folder(self._folder / f"step-{step:06d}")
        with tolerate_full_disk(f"the samples of step {step}"), samples as folder:
            (folder / "transcripts.txt").write_text("\n".join(lines), encoding="utf-8")
            for row, identity in enumerate(self._ids):
                name = numbered_name(row + 1, identity)
                likeliest = self._likeliest(posteriors[row, : positions[row]])
                mel = mels[row, : frames[row]]
                picture = mel_and_posteriors(mel, likeliest, transcribed[row])
                (folder / f"{name}.png").write_bytes(png_bytes(picture))
                self._tensorboard.picture(step, f"posteriors/{name}", picture)

    def _likeliest(self, posteriors: np.ndarray) -> dict[str, np.ndarray]:
        """Return the probabilities of the symbols that are the likeliest at some position.

        They are by name, in the order of their ids.
        """
        names = {BLANK_ID: "blank"} | dict(enumerate(self._symbols.symbols, FIRST_SYMBOL_ID))
        return {
            names.get(i, str(i)): posteriors[:, i] for i in np.unique(posteriors.argmax(axis=1))
        }
