"""A voice of Piper, which needs espeak-ng and onnxruntime alone."""

import os
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soxr

from myxtts.audio.format import sample_rate_hz
from myxtts.base.errors import CheckpointError, DataError
from myxtts.config.synthesis import SynthesisOptions
from myxtts.speak.chunks import load_onnx, pause_between, voice_inputs
from myxtts.speak.player import choose_speaker
from myxtts.text.frontend import TextFrontend
from myxtts.text.sentences import empty_text_message, split_text


class PiperVoice:
    """A file *.onnx of Piper and its JSON; see `Speaker`.

    A sentence is read as Piper reads it: the phonemes of espeak-ng in NFD, between ^ and $, with _
    behind each. Phonemes that the voice does not have are left out, as Piper does. Other rates than
    this process's are resampled.
    """

    takes_reference = False

    def __init__(self, graph: Path, document: dict[str, Any]):
        self.threads, self.name = os.cpu_count() or 1, graph.stem
        try:
            if document.get("phoneme_type", "espeak") != "espeak":
                kind = document["phoneme_type"]
                raise CheckpointError(f"{graph} reads {kind}, which only Piper makes. Use Piper.")
            self._ids = {symbol: ids[0] for symbol, ids in document["phoneme_id_map"].items()}
            self._rate_hz = int(document["audio"]["sample_rate"])
            self.language = document["espeak"]["voice"]
            names = document.get("speaker_id_map") or {"default": 0}
            self._rows, scales = names, document["inference"]
            self._scales = [scales[name] for name in ("noise_scale", "length_scale", "noise_w")]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CheckpointError(
                f"{graph}.json is no description of a voice of Piper: {error!r}. Copy it again."
            ) from error
        self.speakers: Sequence[str] = [*names]
        self._frontend, self._run = TextFrontend(normaliser="none"), load_onnx(graph)

    def speak(
        self, text: str, speaker: str = "", speed: float = 1.0, reference: Path | None = None
    ) -> Iterator[np.ndarray]:
        row = self._rows[self.speakers[choose_speaker(speaker, self.speakers)]]
        if reference is not None:
            raise DataError("a voice of Piper has fixed speakers. Leave out the reference.")
        SynthesisOptions(speed=speed)  # raises for a speed beyond its bounds
        sentences = [
            (ids, boundary)
            for sentence, boundary in split_text(text, self.language)
            if len(ids := self._ids_of(sentence)) > 3
        ]
        if not sentences:
            raise DataError(empty_text_message(text))

        def waves() -> Iterator[np.ndarray]:
            previous = None
            for ids, boundary in sentences:
                wave = self._wave(ids, row, speed)
                pause = wave[:0]
                if previous is not None:
                    pause = pause_between(*previous, wave, speed)
                previous = wave, boundary
                yield np.concatenate([pause, wave])

        return waves()

    def _ids_of(self, sentence: str) -> list[int]:
        """Return the ids of a sentence: [^, _, p, _, q, _, …, $]."""
        symbols = self._frontend.symbols(sentence, self.language)
        points = unicodedata.normalize("NFD", "".join(symbols))
        ids = [self._ids["^"], self._ids["_"]]
        for point in points:
            if point in self._ids:
                ids += [self._ids[point], self._ids["_"]]
        return [*ids, self._ids["$"]]

    def _wave(self, ids: Sequence[int], row: int, speed: float) -> np.ndarray:
        noise, length, variety = self._scales
        inputs = voice_inputs(ids, len(self.speakers), (noise, length / speed, variety), row)
        wave = self._run(inputs).ravel()
        if self._rate_hz != sample_rate_hz():
            wave = soxr.resample(wave, self._rate_hz, sample_rate_hz())
        return wave

    def refresh(self) -> None:
        """Do nothing: a file has no newer checkpoints."""
