"""Speech synthesis with a trained run: from a text and reference recordings to waves."""

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.format import HOP_SAMPLES, MEL_BANDS, SAMPLE_RATE_HZ
from myxtts.audio.loudness import with_loudness
from myxtts.audio.mel import log_mel
from myxtts.audio.vocoder import vocode
from myxtts.config.schema import DataConfig
from myxtts.data.audio_file import REFERENCE, read_recording
from myxtts.errors import DataError
from myxtts.models.xtts import SynthesisOptions
from myxtts.tasks.tts import synthesis_options
from myxtts.text.languages import choose_language
from myxtts.text.normalisers import unread
from myxtts.text.sentences import Boundary, empty_text_message, split_text
from myxtts.text.symbols import BEGIN_ID, END_ID, PADDING_ID
from myxtts.text.times import TimedWord, time_words
from myxtts.text.words import words_of_text
from myxtts.training.runs import TrainedRun

BATCH_CHUNKS = 8
MAX_UNKNOWN_FRACTION = 0.25  # of the symbols of a chunk
FADE_S = 0.005
# Total silence between two chunks, including the silence at their own ends. espeak-ng makes 0.15 s
# at a comma, 0.30 s between sentences and 0.53 s between paragraphs at its default of 175 words per
# minute; human readers take longer.
PAUSES_S = {Boundary.CLAUSE: 0.15, Boundary.SENTENCE: 0.4, Boundary.PARAGRAPH: 0.8}
SILENCE_LEVEL = 0.01  # of the peak of a wave: -40 dB

log = logging.getLogger(__name__)


class _Chunk(NamedTuple):
    """A part of a text, its symbols that the model knows, and their tokens, int32 [N]."""

    text: str
    symbols: list[str]
    tokens: np.ndarray
    boundary: Boundary


class SpokenSentence(NamedTuple):
    """A sentence with the pause before it: its wave, and what computes the times of its words.

    These are in seconds from the beginning of the whole speech.
    """

    wave: np.ndarray
    times: Callable[[], list[TimedWord]]


class Synthesizer:
    """Speech synthesis with the weights of a run.

        synthesizer = Synthesizer(Path("runs/demo"), vocoder=Path("runs/vocoder"))
        wave = synthesizer.synthesize("Good morning.", references=[Path("speaker.wav")])

    Args:
        run: its folder. Averaged weights are used if it has them.
        device: the device to compute on, which must be configured already.
        vocoder: folder of a vocoder's run, or "griffin-lim"; by default the vocoder that the run
            names, or else Griffin-Lim.
        iterations: of Griffin-Lim; by default 30.
        checkpoint: its name; by default the best one, or the newest if none was validated.
        lexicon: readings of words besides those of the run; see `read_lexicon`.

    Attributes:
        options: default SynthesisOptions, from the settings of the run. `dataclasses.replace` makes
            variants.

    Raises:
        CheckpointError: there is no usable checkpoint, or the vocoder cannot be used.
        ConfigError: iterations were given for another vocoder than Griffin-Lim.
    """

    def __init__(
        self,
        run: Path,
        device: str = "/CPU:0",
        vocoder: str | Path | None = None,
        iterations: int | None = None,
        checkpoint: str | None = None,
        lexicon: Mapping[str, str] | None = None,
    ):
        trained = TrainedRun.open(run, checkpoint)
        config = trained.record.settings
        self.options = synthesis_options(config.model)
        self._frontend = trained.record.frontend.with_words(lexicon or {})
        self._data = config.data
        self._vocabulary = trained.record.vocabulary
        self._device = device
        choice = trained.select_vocoder(vocoder, iterations)
        self._network = trained.load_network(device, "tts")
        log.info("synthesizer    %s, step %d", run, trained.record.step)
        self._vocoder = choice.load(device)
        # Traces and optimises the graphs now, so that the first sentence does not wait for it.
        tokens = np.array([BEGIN_ID, END_ID], np.int32)
        self._synthesize_batch([tokens], self._reference_mel(()), 0, SynthesisOptions())

    def synthesize(
        self,
        text: str,
        references: Sequence[Path] = (),
        language: str | None = None,
        options: SynthesisOptions | None = None,
    ) -> np.ndarray:
        """Return the concatenated waves of `synthesize_sentences`."""
        return np.concatenate(list(self.synthesize_sentences(text, references, language, options)))

    def synthesize_sentences(
        self,
        text: str,
        references: Sequence[Path] = (),
        language: str | None = None,
        options: SynthesisOptions | None = None,
    ) -> Iterator[np.ndarray]:
        """Synthesize a text of any length sentence by sentence.

        The call itself reads the text and the references. Iterating synthesizes the first sentence
        alone, so that its wave is there early, then 2, 4 and always 8 sentences at a time, so
        memory does not grow with the text. All sentences use the same seed.

        Args:
            text: `split_text` documents how sentences and paragraphs are found.
            references: audio files of the speaker of half a second or longer. The beginnings of all
                files together condition the model. Without references, the model uses its learned
                default condition.
            language: a language that the run was trained on; optional if there is only one.
            options: speed, pitch, energy, steps, guidance and seed; by default `self.options`.

        Yields:
            The wave of each sentence with the pause before it, float32 [samples] in [-1, 1] at
            22,050 Hz. Each sentence begins and ends with 0, so concatenated sentences have no
            clicks.

        Raises:
            DataError: the text has nothing to speak, the language is missing or unknown, or a
                reference is unusable.
        """
        sentences = self.speak(text, references, language, options)
        return (sentence.wave for sentence in sentences)

    def speak(
        self,
        text: str,
        references: Sequence[Path] = (),
        language: str | None = None,
        options: SynthesisOptions | None = None,
    ) -> Iterator[SpokenSentence]:
        """Do the same as `synthesize_sentences`, and yield the times of words with the waves."""
        language = choose_language(language, self._vocabulary.languages)
        chunks = self._encode(text, language)
        return self._speak(
            chunks, self._reference_mel(references), language, options or self.options
        )

    def _speak(
        self,
        chunks: Sequence[_Chunk],
        reference: np.ndarray,
        language: str,
        options: SynthesisOptions,
    ) -> Iterator[SpokenSentence]:
        pause = np.zeros(0, np.float32)
        previous: tuple[np.ndarray, Boundary] | None = None
        spoken = 0
        first, size = 0, 1
        while first < len(chunks):
            batch = chunks[first : first + size]
            started_s = time.perf_counter()
            tokens = [chunk.tokens for chunk in batch]
            row = self._vocabulary.languages.index(language)
            waves, paths = self._synthesize_batch(tokens, reference, row, options)
            first += len(batch)
            size = min(2 * size, BATCH_CHUNKS)
            speech_s, elapsed_s = sum(map(len, waves)) / SAMPLE_RATE_HZ, time.perf_counter()
            line = "sentence %d of %d: %.1f s of speech in %.1f s"
            log.info(line, first, len(chunks), speech_s, elapsed_s - started_s)
            for wave, path, chunk in zip(map(fade_ends, waves), paths, batch, strict=True):
                if previous is not None:
                    pause = pause_between(*previous, wave, options.speed)
                previous = wave, chunk.boundary
                times = partial(self._times, chunk, language, path, spoken + len(pause))
                spoken += len(pause) + len(wave)
                yield SpokenSentence(np.concatenate([pause, wave]), times)

    def _times(self, chunk: _Chunk, language: str, path: np.ndarray, start: int) -> list[TimedWord]:
        """Return the times of the words of a chunk whose wave begins at a sample."""
        words = words_of_text(chunk.text, language, self._frontend, chunk.symbols)
        # Token 1 is the first symbol, behind that of begin.
        frames = np.searchsorted(path, np.arange(1, len(chunk.tokens)))
        return time_words(words, (start + HOP_SAMPLES * frames) / SAMPLE_RATE_HZ)

    def _synthesize_batch(
        self,
        texts: Sequence[np.ndarray],
        reference: np.ndarray,
        language: int,
        options: SynthesisOptions,
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the waves of texts, int32 [N] each, with a reference log-mel, float32 [R, 80].

        And the token of each frame, int32 [T] each.
        """
        rows = len(texts)
        tokens = np.array(list(itertools.zip_longest(*texts, fillvalue=PADDING_ID)), np.int32).T
        padded = reference[None] if len(reference) else np.zeros([1, 1, MEL_BANDS], np.float32)
        with tf.device(self._device):
            mel, frames, path = self._network.synthesize(
                tf.constant(tokens),
                tf.constant([len(text) for text in texts]),
                tf.fill([rows], language),
                tf.tile(padded, [rows, 1, 1]),
                tf.fill([rows], len(reference)),
                options,
            )
            waves = vocode(self._vocoder, mel, frames, (options.seed, 0))
        rows_of_paths = zip(path.numpy(), frames.numpy(), strict=True)
        return waves, [row_path[:length] for row_path, length in rows_of_paths]

    def _encode(self, text: str, language: str) -> list[_Chunk]:
        """Return the chunks of a text. Unknown symbols are left out, with a warning."""
        chunks = []
        sentences_with: dict[str, list[str]] = {}
        for number, (chunk, boundary) in enumerate(split_text(text), 1):
            stages = self._frontend.stages(chunk, language)
            symbols = stages.symbols
            if self._frontend.kind == "phonemes" and (left := unread(stages.lexicon)):
                line = "sentence %d: read by espeak-ng in its own way: %s"
                log.info(line, number, " ".join(left))
            if not symbols:  # such as ① in English
                line = "sentence %d left out, since nothing in it is spoken: %r"
                log.warning(line, number, chunk[:60])
                continue
            unknown = self._vocabulary.symbols.unknown(symbols)
            known = [symbol for symbol in symbols if symbol not in unknown]
            if len(known) <= (1 - MAX_UNKNOWN_FRACTION) * len(symbols):
                raise DataError(
                    f"the training corpus has only {len(known)} of the {len(symbols)} symbols of"
                    f" sentence {number}, {chunk!r} (unknown: {' '.join(unknown)}). Give a text in"
                    " a language of the corpus, and name the language with --language."
                )
            for symbol in unknown:
                sentences_with.setdefault(symbol, []).append(str(number))
            tokens = self._vocabulary.symbols.encode(known)
            chunks.append(_Chunk(chunk, known, tokens, boundary))
        if not chunks:
            raise DataError(empty_text_message(text))
        for symbol, numbers in sentences_with.items():
            line = "symbol left out, since the training corpus lacks it: %s (sentence %s)"
            log.warning(line, symbol, ", ".join(numbers[:5]))
        return chunks

    def _reference_mel(self, references: Sequence[Path]) -> np.ndarray:
        with tf.device(self._device):
            return reference_mel(references, self._data)


def reference_mel(references: Sequence[Path], data: DataConfig) -> np.ndarray:
    """Return the concatenated log-mels of the beginnings of all references, float32 [R, 80].

    On the current device.
    """
    mels = [np.zeros([0, MEL_BANDS], np.float32)]
    for reference in references:
        samples = int(data.reference_seconds * SAMPLE_RATE_HZ)
        wave = read_recording(reference, *REFERENCE, samples, data.trim)
        mels.append(log_mel(with_loudness(tf.constant(wave[None]), data.loudness))[0].numpy())
    return np.concatenate(mels)


def fade_ends(wave: np.ndarray) -> np.ndarray:
    """Fade the first and the last 5 ms of a wave in and out with a raised cosine."""
    samples = min(round(FADE_S * SAMPLE_RATE_HZ), len(wave) // 2)
    if not samples:
        return np.zeros_like(wave)
    rise = (0.5 - 0.5 * np.cos(np.pi * np.arange(samples) / samples)).astype(wave.dtype)
    return np.concatenate(
        [wave[:samples] * rise, wave[samples:-samples], wave[-samples:] * rise[::-1]]
    )


def pause_between(
    wave: np.ndarray, boundary: Boundary, following: np.ndarray, speed: float
) -> np.ndarray:
    """Return the zeros between two waves: the boundary's pause minus their own silence."""
    silent = _leading_silence(wave[::-1]) + _leading_silence(following)
    pause = round(PAUSES_S[boundary] * SAMPLE_RATE_HZ / speed)
    return np.zeros(max(pause - silent, 0), wave.dtype)


def _leading_silence(wave: np.ndarray) -> int:
    """Return the number of samples before the first audible one; all samples of a silent wave."""
    level = np.abs(wave)
    audible = level > SILENCE_LEVEL * level.max(initial=0.0)
    return int(audible.argmax()) if audible.any() else len(wave)
