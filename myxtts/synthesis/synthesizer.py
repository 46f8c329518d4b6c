"""A trained run as a voice: text and references in, waves out."""

import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from myxtts.audio.format import MEL_BANDS, SAMPLE_RATE_HZ
from myxtts.audio.griffin_lim import ITERATIONS, griffin_lim_waves
from myxtts.audio.mel import log_mel
from myxtts.config.schema import ModelConfig
from myxtts.errors import DataError
from myxtts.models.xtts import SynthesisOptions
from myxtts.synthesis.concatenation import fade_ends, pause_between
from myxtts.synthesis.language import choose_language
from myxtts.synthesis.reference import read_reference
from myxtts.tasks.tts_samples import synthesis_options
from myxtts.text.frontend import symbols_of
from myxtts.text.sentences import Boundary, TextChunk, split_text
from myxtts.text.symbols import BEGIN_ID, END_ID, PADDING_ID
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.load_model import load_model
from myxtts.training.select_checkpoint import select_checkpoint, vocabulary_of

BATCH_PIECES = 8
MOST_LEFT_OUT = 0.25  # share of a piece's symbols

log = logging.getLogger(__name__)


class Spelt(NamedTuple):
    """A piece of text as the network reads it: int32 [N] ids, and what the piece ends."""

    tokens: np.ndarray
    end: Boundary


class Synthesizer:
    """Speaks with the weights of a run.

        synthesizer = Synthesizer(Path("runs/demo"))
        wave = synthesizer.synthesize("Good morning.", references=[Path("speaker.wav")])

    Args:
        run: folder of the run. Its best checkpoint is used, or the newest where none was validated;
            the averaged weights where the run has them.
        device: where to compute; devices are configured before.

    Attributes:
        manner: the run's own, by its settings; `dataclasses.replace` makes others of it.

    Raises:
        CheckpointError: there is no usable checkpoint.
    """

    def __init__(self, run: Path, device: str = "/CPU:0"):
        checkpoint = select_checkpoint(run)
        metadata = read_metadata(checkpoint)
        settings = metadata["settings"]
        self.options = synthesis_options(ModelConfig(**settings["model"]))
        self._frontend = settings["data"]["text_frontend"]
        self._reference_samples = int(settings["data"]["reference_seconds"] * SAMPLE_RATE_HZ)
        self._tables = vocabulary_of(metadata)
        self._device = device
        self._network = load_model(checkpoint, metadata, device)
        self._warm_up()
        log.info("voice          %s, step %d", run, metadata["step"])

    def synthesize(
        self,
        text: str,
        references: Sequence[Path] = (),
        language: str | None = None,
        options: SynthesisOptions | None = None,
        iterations: int = ITERATIONS,
    ) -> np.ndarray:
        """The waves of `synthesize_sentences` as one."""
        return np.concatenate(list(self.synthesize_sentences(text, references, language, options, iterations)))

    def synthesize_sentences(
        self,
        text: str,
        references: Sequence[Path] = (),
        language: str | None = None,
        options: SynthesisOptions | None = None,
        iterations: int = ITERATIONS,
    ) -> Iterator[np.ndarray]:
        """Say a text of any length, sentence by sentence.

        The text and the references are read at the call. Speech is made when it is asked for, 8 sentences at a
        time, so that memory does not grow with the text. All sentences have the noise of the manner's seed.

        Args:
            text: see `split_text` for what ends a sentence and a paragraph.
            references: audio files of the speaker, each half a second or longer, whose beginnings are heard
                together. Without any, the run's voice without reference speaks.
            language: one that the run was trained on; may be left out where that is only one.
            manner: speed, pitch, energy, steps, guidance and seed; the run's own by default.
            iterations: of Griffin-Lim.

        Yields:
            float32 [samples] in [-1, 1] at 22,050 Hz of each sentence, with the pause before it. They begin and end
            with 0, so that joined they have no click.

        Raises:
            DataError: nothing to say, no language or an unknown one, or a reference that cannot be used.
        """
        languages = self._tables.languages
        language = choose_language(language, languages)
        spelt = self._spell(text, language)
        heard = self._hear(references)
        return self._joined(spelt, heard, languages.index(language), options or self.options, iterations)

    def _joined(
        self, spelt: Sequence[Spelt], heard: np.ndarray, language: int, options: SynthesisOptions, iterations: int
    ) -> Iterator[np.ndarray]:
        before = None
        for first in range(0, len(spelt), BATCH_PIECES):
            batch = spelt[first : first + BATCH_PIECES]
            started_s = time.perf_counter()
            waves = self._say([piece.tokens for piece in batch], heard, language, options, iterations)
            log.info(
                "%s of %d: %.1f s of speech in %.1f s",
                f"sentences {first + 1} to {first + len(batch)}" if len(batch) > 1 else f"sentence {first + 1}",
                len(spelt),
                sum(map(len, waves)) / SAMPLE_RATE_HZ,
                time.perf_counter() - started_s,
            )
            for wave, piece in zip(map(fade_ends, waves), batch, strict=True):
                pause = np.zeros(0, np.float32) if before is None else pause_between(*before, wave, options.speed)
                before = (wave, piece.boundary)
                yield np.concatenate([pause, wave])

    def _say(
        self, texts: Sequence[np.ndarray], heard: np.ndarray, language: int, options: SynthesisOptions, iterations: int
    ) -> list[np.ndarray]:
        """Waves of texts, int32 [N] each, in the voice of a log-mel, float32 [R, 80]."""
        rows = len(texts)
        tokens = np.array(list(itertools.zip_longest(*texts, fillvalue=PADDING_ID)), np.int32).T
        with tf.device(self._device):
            mel, frames, _ = self._network.synthesize(
                tf.constant(tokens),
                tf.constant([len(text) for text in texts]),
                tf.fill([rows], language),
                tf.tile(heard[None] if len(heard) else tf.zeros([1, 1, MEL_BANDS]), [rows, 1, 1]),
                tf.fill([rows], len(heard)),
                options,
            )
            return griffin_lim_waves(mel, frames, (options.seed, 0), iterations)

    def _warm_up(self) -> None:
        """Trace and optimise the graphs, which belongs to loading and not to the first sentence."""
        self._say(
            [np.array([BEGIN_ID, END_ID], np.int32)], np.zeros([0, MEL_BANDS], np.float32), 0, SynthesisOptions(), 1
        )

    def _spell(self, text: str, language: str) -> list[Spelt]:
        """Every piece of a text; the symbols that the run does not know are left out, and named in the log."""
        spelt: list[Spelt] = []
        unknown_in: dict[str, list[int]] = {}
        for number, piece in enumerate(split_text(text), 1):
            symbols = symbols_of(piece.text, language, self._frontend)
            unknown = self._tables.symbols.unknown(symbols)
            known = [symbol for symbol in symbols if symbol not in unknown]
            if len(known) <= (1 - MOST_LEFT_OUT) * len(symbols):
                raise DataError(_refusal(number, piece, len(known), len(symbols), unknown))
            for symbol in unknown:
                unknown_in.setdefault(symbol, []).append(number)
            spelt.append(Spelt(self._tables.symbols.encode(known), piece.boundary))
        if not spelt:
            raise DataError(f"the text {text[:60]!r} has nothing to say: neither a letter nor a digit. Give some text.")
        for symbol, numbers in unknown_in.items():
            log.warning("left out, since the training corpus does not have it: %s (%s)", symbol, _places(numbers))
        return spelt

    def _hear(self, references: Sequence[Path]) -> np.ndarray:
        """Log-mel of all references' beginnings, one after the other: float32 [R, 80]."""
        mels = [np.zeros([0, MEL_BANDS], np.float32)]
        for reference in references:
            wave = read_reference(reference, self._reference_samples)
            with tf.device(self._device):
                mels.append(log_mel(tf.constant(wave[None]))[0].numpy())
        return np.concatenate(mels)


def _refusal(number: int, piece: TextChunk, known: int, symbols: int, unknown: Sequence[str]) -> str:
    missing = f"; the training corpus does not have {' '.join(unknown)}" if unknown else ""
    return (
        f"{known} of the {symbols} symbols of sentence {number}, {piece.text!r}, can be said{missing}. "
        "Give a text in a language of the corpus, and name it by --language."
    )


def _places(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (", …" if len(numbers) > 5 else "")
    return f"sentence{'s' if len(numbers) > 1 else ''} {shown}"
