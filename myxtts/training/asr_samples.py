"""What a recogniser has understood of held-out utterances."""

import os
import shutil
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.batch import ASR_FEATURES
from myxtts.models.ctc import greedy, texts
from myxtts.observe.metrics import TensorBoard
from myxtts.observe.plots import mel_and_posteriors, png_bytes
from myxtts.text.ctc import BLANK_ID
from myxtts.text.edit_distance import error_rates
from myxtts.text.symbols import FIRST_SYMBOL_ID, SymbolTable
from myxtts.training.state import TrainingState
from myxtts.training.tts_samples import first_rows

UTTERANCES = 4


def references(batch: dict, symbols: SymbolTable) -> list[str]:
    """The true text of each row; empty for a row without an utterance."""
    return texts(batch["tokens"], batch["token_count"], symbols)


def transcripts(outputs: dict, symbols: SymbolTable) -> list[str]:
    """What the likeliest symbols of a recogniser's outputs say, row by row."""
    return texts(*greedy(outputs["logits"], outputs["frames"]), symbols)


class TranscriptMetric:
    """Character and word error rate over one pass."""

    def __init__(self, symbols: SymbolTable):
        self._symbols = symbols
        self._true: list[str] = []
        self._heard: list[str] = []

    def add(self, batch: dict, outputs: dict) -> None:
        for true, said in zip(references(batch, self._symbols), transcripts(outputs, self._symbols), strict=True):
            if true:
                self._true.append(true)
                self._heard.append(said)

    def figures(self) -> dict[str, float]:
        return error_rates(self._true, self._heard)


class ASRSamples:
    """Writes down the same held-out utterances whenever it is called.

    Args:
        folder: gets `step-000500/` with transcripts.txt and a PNG for each utterance.
        batch: ASR_FEATURES on the model device; its first rows are used.
        ids: of its rows.
        symbols: of the run.
    """

    def __init__(self, folder: Path, batch: dict, ids: list[str], symbols: SymbolTable, tensorboard: TensorBoard):
        count = min(UTTERANCES, len(ids))
        self._batch = first_rows(batch, ASR_FEATURES, count)
        self._ids, self._symbols = ids[:count], symbols
        self._folder, self._tensorboard = folder, tensorboard

    def __call__(self, state: TrainingState) -> None:
        batch = self._batch
        with state.averaged_weights(), tf.device(state.device):
            _, outputs = state.model(batch, training=False)
            posteriors = tf.nn.softmax(outputs["logits"])
            said = transcripts(outputs, self._symbols)
        true = references(batch, self._symbols)
        target = self._folder / f"step-{state.step:06d}"
        temporary = self._folder / f".partial-{state.step:06d}"
        temporary.mkdir(parents=True, exist_ok=True)
        lines = [f"{one}\n  said   {a}\n  heard  {b}\n" for one, a, b in zip(self._ids, true, said, strict=True)]
        (temporary / "transcripts.txt").write_text("\n".join(lines), encoding="utf-8")
        columns = batch["mel"].numpy(), batch["frames"].numpy(), posteriors.numpy(), outputs["frames"].numpy()
        for number, (mel, frames, likely, steps) in enumerate(zip(*columns, strict=True), 1):
            name = f"{number}-{Path(self._ids[number - 1]).stem}"
            picture = mel_and_posteriors(mel[:frames], self._spoken(likely[:steps]), said[number - 1])
            (temporary / f"{name}.png").write_bytes(png_bytes(picture))
            self._tensorboard.picture(state.step, f"posteriors/{name}", picture)
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)

    def _spoken(self, posteriors: np.ndarray) -> dict[str, np.ndarray]:
        """By name, the symbols that are the likeliest of some step, in the order of their ids."""
        names = {BLANK_ID: "blank"} | dict(enumerate(self._symbols.symbols, FIRST_SYMBOL_ID))
        return {names.get(one, str(one)): posteriors[:, one] for one in np.unique(posteriors.argmax(axis=1))}
