"""What a server speaks with, and an exported voice, which needs no TensorFlow."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from myxtts.errors import CheckpointError, DataError, check_packages
from myxtts.synthesis.spoken_text import (
    FRONTEND,
    encode_text,
    load_onnx,
    pause_between,
    player_ids_of,
    voice_inputs,
)
from myxtts.text.frontend import TextFrontend
from myxtts.text.symbols import SymbolTable


class Speaker(Protocol):
    """A voice that a server speaks with.

    Attributes:
        name: of the run or file.
        language: of the texts.
        speakers: names to choose from; the first is the default.
        takes_reference: whether a recording can be given instead of a name.
        threads: how many sentences can be spoken at the same time.
    """

    name: str
    language: str
    speakers: Sequence[str]
    takes_reference: bool
    threads: int

    def speak(
        self, text: str, speaker: str = "", speed: float = 1.0, reference: Path | None = None
    ) -> Iterator[np.ndarray]:
        """Yield the wave of each sentence, float32 [samples]; the call raises DataError."""
        ...

    def refresh(self) -> None:
        """Take a newer checkpoint, if there is one."""
        ...


def choose_speaker(name: str, speakers: Sequence[str]) -> int:
    """Return the number of a speaker; the first without a name. Raises DataError."""
    if name and name not in speakers:
        raise DataError(f"the voice {name!r} is unknown. Use one of {', '.join(speakers)}.")
    return speakers.index(name) if name else 0


class ExportedSpeaker:
    """A voice of `myxtts export --format onnx`: its folder, or one of its files; see `Speaker`.

    Raises CheckpointError if it cannot be used, and ConfigError if onnxruntime is missing.
    """

    takes_reference = False

    def __init__(self, path: Path):
        check_packages("--model", "onnxruntime")
        # The shortest name is that of float32.
        files = [path] if path.is_file() else sorted(path.glob("*.onnx"), key=lambda x: len(x.name))
        if not files:
            raise CheckpointError(
                f"--model {path} has no file *.onnx. Give the folder that `myxtts export --format"
                " onnx` wrote, or a file in it."
            )
        # A sentence takes one core, so that several are spoken at the same time.
        self.threads, self.name = os.cpu_count() or 1, files[0].stem
        try:
            document = json.loads(files[0].with_name(f"{files[0].name}.json").read_text("utf-8"))
            frontend = document[FRONTEND]
            self._symbols = SymbolTable(tuple(frontend.pop("symbols")))
            self._frontend = TextFrontend(**frontend)
            self._id_map = document["phoneme_id_map"]
            self._scales = [*document["inference"].values()]
            self.language = document["language"]["code"]
            self.speakers: Sequence[str] = [*document["speaker_id_map"]]
            self._run = load_onnx(files[0])
        except Exception as error:  # onnxruntime has classes of its own, without a common one
            raise CheckpointError(
                f"{files[0]} cannot be used: {error!r}. Export the voice again with this version."
            ) from error

    def speak(
        self, text: str, speaker: str = "", speed: float = 1.0, reference: Path | None = None
    ) -> Iterator[np.ndarray]:
        row = choose_speaker(speaker, self.speakers)
        if reference is not None:
            raise DataError("an exported voice has fixed speakers. Leave out the reference.")
        chunks = encode_text(text, self.language, self._frontend, self._symbols)

        def waves() -> Iterator[np.ndarray]:
            previous = None
            for chunk in chunks:
                wave = self._wave(chunk.symbols, row, speed)
                pause = wave[:0]
                if previous is not None:
                    pause = pause_between(*previous, wave, speed)
                previous = wave, chunk.boundary
                yield np.concatenate([pause, wave])

        return waves()

    def _wave(self, symbols: Sequence[str], speaker: int, speed: float) -> np.ndarray:
        ids = player_ids_of(symbols, self._id_map)
        noise, length, variety = self._scales
        scales = noise, length / speed, variety
        inputs = voice_inputs(ids, len(self.speakers), scales, speaker)
        return self._run(inputs).ravel()

    def refresh(self) -> None:
        """Do nothing: a file has no newer checkpoints."""
