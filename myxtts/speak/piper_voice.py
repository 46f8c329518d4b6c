"""A voice of Piper, which needs espeak-ng and onnxruntime alone."""

import os
import unicodedata
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soxr

from myxtts.audio.format import HOP_SAMPLES, sample_rate_hz
from myxtts.base.errors import CheckpointError, DataError
from myxtts.config.synthesis import SynthesisOptions
from myxtts.speak.chunks import Chunk, SpokenSentence, edges_of, joined, load_onnx, voice_inputs
from myxtts.speak.player import choose_speaker
from myxtts.text.frontend import TextFrontend
from myxtts.text.sentences import Boundary, empty_text_message, split_text


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
            self._hop = int(document.get("hop_length", HOP_SAMPLES))
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

    @property
    def has_times(self) -> bool:
        return len(self._outputs(self._chunk("", Boundary.SENTENCE), 0, 1.0)) > 1

    def speak(
        self, text: str, speaker: str = "", speed: float = 1.0, reference: Path | None = None
    ) -> Iterator[SpokenSentence]:
        row = self._rows[self.speakers[choose_speaker(speaker, self.speakers)]]
        if reference is not None:
            raise DataError("a voice of Piper has fixed speakers. Leave out the reference.")
        SynthesisOptions(speed=speed)  # raises for a speed beyond its bounds
        chunks = [self._chunk(*sentence) for sentence in split_text(text, self.language)]
        if not any(chunk.symbols for chunk in chunks):
            raise DataError(empty_text_message(text))
        spoken = (self._spoken(chunk, row, speed) for chunk in chunks if chunk.symbols)
        return joined(spoken, self.language, self._frontend, speed)

    def _chunk(self, sentence: str, boundary: Boundary) -> Chunk:
        """Return a sentence with the symbols and the ids that Piper has: [^, _, p, _, …, $]."""
        read = self._frontend.symbols(sentence, self.language)
        points = map(partial(unicodedata.normalize, "NFD"), read)
        known = ["".join(filter(self._ids.__contains__, symbol)) for symbol in points]
        symbols = [*filter(None, known)]
        ids = [self._ids[point] for point in "_".join(f"^{''.join(symbols)}$")]
        return Chunk(sentence, symbols, np.array(ids), boundary)

    def _outputs(self, chunk: Chunk, row: int, speed: float) -> list[np.ndarray]:
        noise, length, variety = self._scales
        scales = noise, length / speed, variety
        return self._run(voice_inputs(chunk.tokens, len(self.speakers), scales, row))

    def _spoken(self, chunk: Chunk, row: int, speed: float) -> tuple[Chunk, np.ndarray, np.ndarray]:
        outputs = self._outputs(chunk, row, speed)
        wave, ratio = outputs[0].ravel(), sample_rate_hz() / self._rate_hz
        if ratio != 1.0:
            wave = soxr.resample(wave, self._rate_hz, sample_rate_hz())
        # Behind each id, and before the first symbol, is that of _.
        places = 2 * np.cumsum([1, *map(len, chunk.symbols)])
        return chunk, wave, edges_of(outputs, places, ratio * self._hop)

    def refresh(self) -> None:
        """Do nothing: a file has no newer checkpoints."""
