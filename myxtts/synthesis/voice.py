"""A trained run as a voice: text and a reference in, a wave out."""

import logging
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.audio.griffin_lim import waves_of
from myxtts.audio.mel import log_mel
from myxtts.data.wave_file import read_wave
from myxtts.errors import DataError
from myxtts.text.frontend import symbols_of
from myxtts.text.symbols import SymbolTable
from myxtts.training.checkpoint import read_about
from myxtts.training.trained import choose_checkpoint, load_network

SHORTEST_REFERENCE_S = 0.5
MOST_LEFT_OUT = 0.25  # share of a text's symbols

log = logging.getLogger(__name__)


class Voice:
    """Speaks with the weights of a run.

        voice = Voice(Path("runs/demo"))
        wave = voice.speak("Good morning.", reference=Path("speaker.wav"))

    Args:
        run: folder of the run. Its best checkpoint is used, or the newest where none was validated;
            the averaged weights where the run has them.
        device: where to compute; devices are configured before.

    Raises:
        CheckpointError: there is no usable checkpoint.
    """

    def __init__(self, run: Path, device: str = "/CPU:0"):
        checkpoint = choose_checkpoint(run)
        about = read_about(checkpoint)
        settings = about["settings"]
        self._frontend = settings["data"]["text_frontend"]
        self._reference_samples = int(settings["data"]["reference_seconds"] * SAMPLE_RATE_HZ)
        self._symbols = SymbolTable.from_list(about["symbols"])
        self._languages = about["languages"]
        self._device = device
        self._model = load_network(checkpoint, about, device)
        log.info("voice          %s, step %d", run, about["step"])

    def speak(
        self, text: str, reference: Path, language: str | None = None, speed: float = 1.0, seed: int = 0
    ) -> np.ndarray:
        """Say a text in the voice of a reference.

        Args:
            text: one or a few sentences.
            reference: audio file of the speaker, at least half a second; its beginning is heard.
            language: one that the run was trained on; its first by default.
            speed: 2 is twice as fast.
            seed: of Griffin-Lim's first phases; the same seed gives the same wave.

        Returns:
            float32 [samples] in [-1, 1] at 22,050 Hz.

        Raises:
            DataError: nothing to say, an unknown language, or a reference that cannot be used.
        """
        tokens = self._encode(text, language)
        heard = self._hear(reference)
        with tf.device(self._device):
            mel_of_reference = log_mel(tf.constant(heard[None]))
            mel, frames, _ = self._model.speak(
                tf.constant(tokens[None]),
                tf.constant([len(tokens)]),
                tf.constant([self._languages.index(language or self._languages[0])]),
                mel_of_reference,
                tf.constant([mel_of_reference.shape[1]]),
                tf.constant(speed, tf.float32),
            )
            return waves_of(mel, frames, (seed, 0))[0]

    def _encode(self, text: str, language: str | None) -> np.ndarray:
        language = language or self._languages[0]
        if language not in self._languages:
            raise DataError(
                f"language '{language}' was asked for, but this run was trained on {', '.join(self._languages)}. "
                "Give one of these by --language."
            )
        symbols = symbols_of(text, language, self._frontend)
        unknown = self._symbols.unknown(symbols)
        known = [symbol for symbol in symbols if symbol not in unknown]
        if len(known) <= (1 - MOST_LEFT_OUT) * len(symbols):
            raise DataError(
                f"{len(known)} of the {len(symbols)} symbols of {text!r} can be said"
                + (f"; the training corpus does not have {' '.join(unknown)}" if unknown else "")
                + ". Give a text in a language of the corpus, and name it by --language."
            )
        if unknown:
            log.warning("left out, since the training corpus does not have them: %s", " ".join(unknown))
        return self._symbols.encode(known)

    def _hear(self, reference: Path) -> np.ndarray:
        """float32 [samples] of the reference's beginning."""
        try:
            wave = read_wave(reference)[: self._reference_samples]
        except DataError as error:
            raise DataError(f"{error}. Give an audio file of the speaker by --reference.") from error
        if len(wave) < SHORTEST_REFERENCE_S * SAMPLE_RATE_HZ:
            raise DataError(
                f"the reference {reference} has {len(wave) / SAMPLE_RATE_HZ:.2f} s. "
                f"Give at least {SHORTEST_REFERENCE_S} s of speech."
            )
        return wave
