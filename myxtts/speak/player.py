"""What a server speaks with, and an exported voice, which needs no TensorFlow."""

import json
import os
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from myxtts.audio.format import HOP_SAMPLES, use_sample_rate
from myxtts.base.errors import CheckpointError, DataError, check_packages
from myxtts.base.files import LFS_POINTER
from myxtts.base.names import canonical_name
from myxtts.config.synthesis import SynthesisOptions
from myxtts.speak.chunks import (
    FRONTEND,
    Chunk,
    SpokenSentence,
    edges_of,
    encode_text,
    joined,
    load_onnx,
    player_ids_of,
    voice_inputs,
)
from myxtts.text.frontend import TextFrontend
from myxtts.text.symbols import SymbolTable

EXPORTED = "Give the folder that `myxtts export --format onnx` wrote, or a file *.onnx in it."


class Speaker(Protocol):
    """A voice that a server speaks with.

    Attributes:
        name: of the run or file.
        language: of the texts.
        speakers: names to choose from; the first is the default.
        takes_reference: whether a recording can be given instead of a name.
        has_times: whether it tells the times of words.
        threads: how many sentences can be spoken at the same time.
    """

    name: str
    language: str
    speakers: Sequence[str]
    takes_reference: bool
    threads: int

    @property
    def has_times(self) -> bool: ...

    def speak(
        self, text: str, speaker: str = "", speed: float = 1.0, reference: Path | None = None
    ) -> Iterator[SpokenSentence]:
        """Yield the sentences; the call raises DataError."""
        ...

    def refresh(self) -> None:
        """Take a newer checkpoint, if there is one."""
        ...


def choose_speaker(name: str, speakers: Sequence[str]) -> int:
    """Return the number of a speaker; the first without a name. Raises DataError."""
    if not name:
        return 0
    names = [*map(canonical_name, speakers)]
    if canonical_name(name) not in names:
        raise DataError(f"the voice {name!r} is unknown. Use one of {', '.join(speakers)}.")
    return names.index(canonical_name(name))


# The path may be a folder or a graph. The JSON beside the graph says whose voice it is. Every way
# in which the pair can be incomplete gets its own message, because users copy one file and forget
# the other.
def open_voice(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return graph and JSON of a voice of this project; raises CheckpointError for another one."""
    graph, fields = read_voice(path)
    if FRONTEND not in fields:
        found = "a voice of Piper, not" if "phoneme_id_map" in fields else "no voice"
        raise CheckpointError(
            f"{graph} is {found} of MyXTTS: {graph.name}.json has no {FRONTEND}. {EXPORTED}"
        )
    return graph, fields


def read_voice(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return graph and JSON of a voice, of a folder or a file; raises CheckpointError.

    A folder may have several precisions; float32 has the shortest name. A published one has them in
    its folder onnx.
    """
    if (path / "onnx").is_dir():
        path = path / "onnx"
    is_graph = path.suffix == ".onnx" and not path.is_dir()
    files = [path] if is_graph else sorted(path.glob("*.onnx"), key=lambda file: len(file.name))
    if not files:
        raise CheckpointError(f"--voice {path} has no file *.onnx. {EXPORTED}")
    about = files[0].with_name(f"{files[0].name}.json")
    try:
        for file in (files[0], about):
            with open(file, "rb") as content:
                if content.read(len(LFS_POINTER)) == LFS_POINTER:
                    raise CheckpointError(f"{file} is a pointer of Git LFS. Run `git lfs pull`.")
        document = json.loads(about.read_text("utf-8"))
    except OSError as error:
        found = f"cannot be read: {error.strerror}"
        if isinstance(error, FileNotFoundError):
            found = f"is missing; {files[0].name} and {about.name} belong together"
        raise CheckpointError(f"{file} {found}. Copy or rename both.") from error
    except ValueError as error:
        raise CheckpointError(f"{about} is no JSON: {error}. Copy it again.") from error
    fields = document if isinstance(document, dict) else {}
    return files[0], fields


class ExportedSpeaker:
    """A voice of `myxtts export --format onnx`: its folder, or one of its files; see `Speaker`.

        speaker = ExportedSpeaker(Path("exported"))
        for sentence in speaker.speak("Good morning. How are you?", speed=1.1):
            play(sentence.wave)

    Raises CheckpointError if it cannot be used, and ConfigError if onnxruntime is missing.
    """

    takes_reference = False

    def __init__(self, path: Path):
        check_packages("--voice", "onnxruntime")
        graph, document = open_voice(path)
        # A sentence takes one core, so that several are spoken at the same time.
        self.threads, self.name = os.cpu_count() or 1, graph.stem
        try:
            frontend = document[FRONTEND]
            self._symbols = SymbolTable(tuple(frontend.pop("symbols")))
            self._frontend = TextFrontend.of_document(frontend)
            self._id_map = document["phoneme_id_map"]
            self._scales = [*document["inference"].values()]
            self.language = document["language"]["code"]
            self.speakers: Sequence[str] = [*document["speaker_id_map"]]
            rate_hz = document["audio"]["sample_rate"]
            ids = player_ids_of(self._symbols.symbols, self._id_map)
        except Exception as error:  # whatever another version has written
            raise CheckpointError(
                f"{graph}.json has another form than this version writes: {error!r}. Export the"
                " voice again with this version."
            ) from error
        self._frontend.reader.check_language(self.language)
        use_sample_rate(rate_hz, str(graph))
        found = "is damaged, or no file of ONNX"
        try:
            self._run = load_onnx(graph)
            found = f"is not the graph that {graph.name}.json describes"
            ids = [ids[0], max(ids), ids[-1]]
            outputs = self._run(voice_inputs(ids, len(self.speakers), self._scales))
        except Exception as error:  # onnxruntime has classes of its own, without a common one
            reason = str(error).partition("\n")[0].rstrip(".")
            raise CheckpointError(f"{graph} {found}: {reason}. Copy both files again.") from error
        self.has_times = len(outputs) > 1

    def speak(
        self, text: str, speaker: str = "", speed: float = 1.0, reference: Path | None = None
    ) -> Iterator[SpokenSentence]:
        row = choose_speaker(speaker, self.speakers)
        if reference is not None:
            raise DataError("an exported voice has fixed speakers. Leave out the reference.")
        SynthesisOptions(speed=speed)  # raises for a speed beyond its bounds
        chunks = encode_text(text, self.language, self._frontend, self._symbols)
        spoken = (self._spoken(chunk, row, speed) for chunk in chunks)
        return joined(spoken, self.language, self._frontend, speed)

    def _spoken(
        self, chunk: Chunk, speaker: int, speed: float
    ) -> tuple[Chunk, np.ndarray, np.ndarray]:
        ids = player_ids_of(chunk.symbols, self._id_map)
        noise, length, variety = self._scales
        scales = noise, length / speed, variety
        outputs = self._run(voice_inputs(ids, len(self.speakers), scales, speaker))
        points = [len(unicodedata.normalize("NFD", symbol)) for symbol in chunk.symbols]
        places = np.cumsum([1, *points])  # behind the id of ^
        return chunk, outputs[0].ravel(), edges_of(outputs, places, HOP_SAMPLES)

    def refresh(self) -> None:
        """Do nothing: a file has no newer checkpoints."""
