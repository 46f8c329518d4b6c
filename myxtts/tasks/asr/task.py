"""Speech recognition: log-mel in, text out, by CTC."""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.vocoder import LoadVocoder
from myxtts.config.schema import Config
from myxtts.corpus.manifest import Vocabulary
from myxtts.devicefeed.contract import FeatureExtractor, LoadFrozen, tensor_specs
from myxtts.report.plots import mel_and_posteriors
from myxtts.tasks.asr import network as asr
from myxtts.tasks.asr.ctc import decoded_texts, greedy_decode
from myxtts.tasks.asr.features import asr_extractor
from myxtts.tasks.asr.network import build_asr
from myxtts.tasks.base import KEPT_ARRAYS, Metric, Sampler, Task, kept_bytes
from myxtts.tasks.contract import ASR_FEATURES
from myxtts.tasks.features import at_loudness
from myxtts.text.error_rates import error_rates
from myxtts.text.symbols import BLANK_ID, FIRST_SYMBOL_ID, SymbolTable


class ASRTask(Task):
    """An encoder with CTC: see tasks/asr/network.py."""

    name = "asr"
    product = "a recogniser"
    options = ("beam_width", "noise_snr_db", "rt60")
    sizes = asr.SIZES
    components: tuple[str, ...] = ("subsampling", "encoder", "output")
    # TensorFlow's CTC loss on sparse labels has no XLA kernel.
    supports_xla = False

    def extractor(
        self, config: Config, training: bool, load_teacher: LoadFrozen | None = None
    ) -> FeatureExtractor:
        extractor = asr_extractor()
        if training:
            extractor = asr_extractor(config.asr, config.augmentation)
        return at_loudness(extractor, config.data.loudness)

    def build(
        self, config: Config, vocabulary: Vocabulary, inference="", weights: Collection[str] = ()
    ) -> keras.Model:
        return build_asr(
            config.model.model_size,
            len(vocabulary.symbols),
            config.asr.encoder,
            config.asr.subsampling,
            precision=inference or config.training.precision,
            dropout=0.0 if inference else config.model.dropout,
        )

    def activation_bytes(self, config: Config, sizes: dict[str, int]) -> int:
        size = self.sizes[config.model.model_size]
        positions = sizes["frames"] // config.asr.subsampling * size.blocks
        return sizes["batch"] * size.channels * positions * KEPT_ARRAYS * kept_bytes(config)

    def describe(self, config: Config) -> str:
        return f"{super().describe(config)}, {config.asr.encoder}"

    def metric(self, vocabulary: Vocabulary) -> Callable[[], Metric]:
        return partial(ErrorRateMetric, vocabulary.symbols)

    def sampler(self, config: Config, vocabulary: Vocabulary, load_vocoder: LoadVocoder):
        return partial(ASRSampler, vocabulary.symbols)


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
        references = decoded_texts(batch["tokens"], batch["token_count"], self._symbols)
        transcripts = decoded_texts(measured["ids"], measured["counts"], self._symbols)
        for reference, transcript in zip(references, transcripts, strict=True):
            # Rows without an utterance pad the last batch, and would count as texts without errors.
            if reference:
                self._references.append(reference)
                # `Transcriber` strips as well.
                self._transcripts.append(transcript.strip())

    def result(self) -> dict[str, float]:
        return error_rates(self._references, self._transcripts)


class ASRSampler(Sampler):
    """Transcribes held-out utterances of ASR_FEATURES; also writes transcripts.txt."""

    FIELDS = ASR_FEATURES

    def __init__(self, symbols: SymbolTable, *output: Any):
        super().__init__(*output)

        def transcribe(batch):
            _, outputs = self._network(batch, training=False)
            return tf.nn.softmax(outputs["logits"]), outputs["frames"], *greedy_decode(**outputs)

        self._transcribe = tf.function(
            transcribe, input_signature=[tensor_specs(ASR_FEATURES)], autograph=False
        )
        self._symbols = symbols

    def trace(self) -> None:
        self._transcribe.get_concrete_function()

    def write(self, step: int, folder: Path) -> None:
        batch = self._batch
        posteriors, positions, ids, counts = self._transcribe(batch)
        references = decoded_texts(batch["tokens"], batch["token_count"], self._symbols)
        transcripts = decoded_texts(ids, counts, self._symbols)
        mels, frames = batch["mel"].numpy(), batch["frames"].numpy()
        posteriors, positions = posteriors.numpy(), positions.numpy()
        lines = []
        for row, name in enumerate(self._names):
            transcript = transcripts[row]
            lines += [self._ids[row], f"  reference   {references[row]}"]
            lines += [f"  transcript  {transcript}", ""]
            likeliest = self._likeliest(posteriors[row, : positions[row]])
            picture = mel_and_posteriors(mels[row, : frames[row]], likeliest, transcript)
            self.write_picture(step, folder / f"{name}.png", f"posteriors/{name}", picture)
        (folder / "transcripts.txt").write_text("\n".join(lines), encoding="utf-8")

    def _likeliest(self, posteriors: np.ndarray) -> dict[str, np.ndarray]:
        """Return the probabilities of the symbols that are the likeliest at some position."""
        names = {BLANK_ID: "blank"} | dict(enumerate(self._symbols.symbols, FIRST_SYMBOL_ID))
        return {
            names.get(i, str(i)): posteriors[:, i] for i in np.unique(posteriors.argmax(axis=1))
        }
