"""A text as chunks for a voice, and the waves of chunks as one speech. Without TensorFlow."""

import logging
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from myxtts.audio.format import sample_rate_hz
from myxtts.base.errors import DataError
from myxtts.text.frontend import TextFrontend
from myxtts.text.named import ADVICE
from myxtts.text.sentences import Boundary, empty_text_message, split_text
from myxtts.text.symbols import SymbolTable
from myxtts.text.times import TimedWord, time_words
from myxtts.text.words import words_of_text

MAX_UNKNOWN_FRACTION = 0.25  # of the symbols of a chunk
FADE_S = 0.005
# Total silence between two chunks, including the silence at their own ends. espeak-ng makes 0.15 s
# at a comma, 0.30 s between sentences and 0.53 s between paragraphs at its default of 175 words per
# minute; human readers take longer.
PAUSES_S = {Boundary.CLAUSE: 0.15, Boundary.SENTENCE: 0.4, Boundary.PARAGRAPH: 0.8}
FRONTEND = "myxtts_frontend"  # in the JSON of an exported voice; no player reads it
# Defaults of players of exported voices: noise, length and variety. With them, a voice speaks as
# `myxtts synthesize` does.
SCALES = 0.667, 1.0, 0.8
SILENCE_LEVEL = 0.01  # of the peak of a wave: -40 dB

log = logging.getLogger(__name__)


class Chunk(NamedTuple):
    """A part of a text, its symbols that the model knows, and their tokens, int32 [N]."""

    text: str
    symbols: list[str]
    tokens: np.ndarray
    boundary: Boundary


class SpokenSentence(NamedTuple):
    """A sentence with the pause before it: its wave, float32 [samples] in [-1, 1], and what
    computes the times of its words, if the voice tells them.
    """

    wave: np.ndarray
    times: Callable[[], list[TimedWord]]


# A text comes in, and is split into sentences or parts of them. The front end makes symbols of
# each, and what it could not read as written is logged. Symbols that the voice never learnt are
# dropped, up to a quarter of a chunk; beyond that, the text is in the wrong language, which is an
# error.
def encode_text(
    text: str, language: str, frontend: TextFrontend, table: SymbolTable
) -> list[Chunk]:
    """Return the chunks of a text. Unknown symbols are left out, with a warning.

    Raises DataError if nothing can be spoken, or too many symbols are unknown.
    """
    chunks = []
    sentences_with: dict[str, list[str]] = {}
    for number, (chunk, boundary) in enumerate(split_text(text, language), 1):
        stages = frontend.stages(chunk, language)
        symbols = stages.symbols
        if stages.left:
            line = "sentence %d: emoji, or read in a way of its own: %s"
            log.info(line, number, " ".join(stages.left))
        if stages.named:
            line = "sentence %d: espeak-ng names the letters of %s instead of reading them. %s"
            log.warning(line, number, ", ".join(stages.named), ADVICE)
        if not symbols:  # such as ℹ️
            line = "sentence %d left out, since nothing in it is spoken: %r"
            log.warning(line, number, chunk[:60])
            continue
        unknown = table.unknown(symbols)
        known = [symbol for symbol in symbols if symbol not in unknown]
        if len(known) <= (1 - MAX_UNKNOWN_FRACTION) * len(symbols):
            raise DataError(
                f"the training corpus has only {len(known)} of the {len(symbols)} symbols of"
                f" sentence {number}, {chunk!r} (unknown: {' '.join(unknown)}). Give a text in"
                " a language of the corpus, and name the language with --language."
            )
        for symbol in unknown:
            sentences_with.setdefault(symbol, []).append(str(number))
        tokens = table.encode(known)
        chunks.append(Chunk(chunk, known, tokens, boundary))
    if not chunks:
        raise DataError(empty_text_message(text))
    for symbol, numbers in sentences_with.items():
        line = "symbol left out, since the training corpus lacks it: %s (sentence %s)"
        log.warning(line, symbol, ", ".join(numbers[:5]))
    return chunks


def fade_ends(wave: np.ndarray) -> np.ndarray:
    """Fade the first and the last 5 ms of a wave in and out with a raised cosine."""
    samples = min(round(FADE_S * sample_rate_hz()), len(wave) // 2)
    if not samples:
        return np.zeros_like(wave)
    rise = (0.5 - 0.5 * np.cos(np.pi * np.arange(samples) / samples)).astype(wave.dtype)
    return np.concatenate(
        [wave[:samples] * rise, wave[samples:-samples], wave[-samples:] * rise[::-1]]
    )


# Before each wave comes the pause that its two neighbours and the boundary between them ask for.
# Times of words are computed only if the caller asks, from the sample at which the wave begins.
def joined(
    spoken: Iterable[tuple[Chunk, np.ndarray, np.ndarray]],
    language: str,
    frontend: TextFrontend,
    speed: float,
) -> Iterator[SpokenSentence]:
    """Yield the sentences of a speech.

    Args:
        spoken: chunks with their waves, and the samples at which their symbols begin, and the last
            one ends: [symbols + 1]; empty if the voice does not tell them.
    """
    previous: tuple[np.ndarray, Boundary] | None = None
    start = 0
    for chunk, wave, edges in spoken:
        pause = wave[:0]
        if previous is not None:
            pause = pause_between(*previous, wave, speed)
        previous = wave, chunk.boundary
        edges_s = (start + len(pause) + edges) / sample_rate_hz()
        start += len(pause) + len(wave)
        times = partial(_times, chunk, language, frontend, edges_s)
        yield SpokenSentence(np.concatenate([pause, wave]), times)


def _times(
    chunk: Chunk, language: str, frontend: TextFrontend, edges_s: np.ndarray
) -> list[TimedWord]:
    return time_words(words_of_text(chunk.text, language, frontend, chunk.symbols), edges_s)


def pause_between(
    wave: np.ndarray, boundary: Boundary, following: np.ndarray, speed: float
) -> np.ndarray:
    """Return the zeros between two waves: the boundary's pause minus their own silence."""
    silent = _leading_silence(wave[::-1]) + _leading_silence(following)
    pause = round(PAUSES_S[boundary] * sample_rate_hz() / speed)
    return np.zeros(max(pause - silent, 0), wave.dtype)


def _leading_silence(wave: np.ndarray) -> int:
    """Return the number of samples before the first audible one; all samples of a silent wave."""
    level = np.abs(wave)
    audible = level > SILENCE_LEVEL * level.max(initial=0.0)
    return int(audible.argmax()) if audible.any() else len(wave)


def load_onnx(path: Path) -> Callable[[dict[str, np.ndarray]], list[np.ndarray]]:
    """Return a function from the inputs of an exported ONNX file to its outputs, on one core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Weights of fewer bits are restored now, also those of exports with DequantizeLinear. Further
    # optimisation takes longer and gains nothing.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    # With the pattern, memory grows with each new length of a text.
    options.enable_mem_pattern = False
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return partial(session.run, None)


def player_ids_of(symbols: Sequence[str], id_map: Mapping[str, Sequence[int]]) -> list[int]:
    """Return the ids of a player for the symbols of a text, as a voice's `phoneme_id_map` says."""
    points = unicodedata.normalize("NFD", "".join(symbols))
    return [id_map[point][0] for point in f"^{points}$"]


def edges_of(outputs: Sequence[np.ndarray], places: np.ndarray, hop: float) -> np.ndarray:
    """Return where these ids of a voice begin, in samples; nothing without its output of frames."""
    if len(outputs) == 1:
        return np.zeros(0)
    return hop * np.cumsum([0.0, *outputs[1].ravel()])[places]


def voice_inputs(
    ids: Sequence[int] | np.ndarray,
    speakers: int,
    scales: Sequence[float] = SCALES,
    speaker: int = 0,
) -> dict[str, np.ndarray]:
    """Return the inputs of an exported voice as a player gives them."""
    inputs: dict[str, np.ndarray] = {
        "input": np.array([ids], np.int64),
        "input_lengths": np.array([len(ids)], np.int64),
        "scales": np.array(scales, np.float32),
    }
    if speakers > 1:
        inputs["sid"] = np.array([speaker], np.int64)
    return inputs
