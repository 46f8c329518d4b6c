"""A trained run as a transcriber: waves in, texts out."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.audio.format import PAD_SAMPLES, SAMPLE_RATE_HZ, frame_count
from myxtts.audio.mel import log_mel
from myxtts.errors import DataError
from myxtts.models.ctc import beam_search_decode, decoded_texts, greedy_decode
from myxtts.recognition.audio_chunks import batches, cut, groups
from myxtts.text.frontend import symbols_of
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.load_model import load_model
from myxtts.training.select_checkpoint import select_checkpoint, vocabulary_of

GROUP_S = 600.0  # what is in memory at a time, or one wave where that is longer

log = logging.getLogger(__name__)


class Transcriber:
    """Writes down what is said, with the weights of a run.

        transcriber = Transcriber(Path("runs/asr"))
        for text in transcriber.transcribe([wave]):
            print(text)

    Args:
        run: folder of the run of a recogniser.
        device: where to compute; devices are configured before.
        checkpoint: its name; the best or the newest by default. The averaged weights are used where the run has them.
        beam_width: prefixes that the search for the likeliest text keeps, on the host; 0 takes the likeliest symbol
            of each frame, on the device.

    Attributes:
        run, device: as given.
        checkpoint: its folder.
        tables: the symbols and languages that it knows.
        decoding: how texts are read from the network's outputs, in words.

    Raises:
        CheckpointError: there is no usable checkpoint, or the run is no recogniser.
    """

    def __init__(self, run: Path, device: str = "/CPU:0", checkpoint: str | None = None, beam_width: int = 0):
        self.checkpoint = select_checkpoint(run, checkpoint)
        metadata = read_metadata(self.checkpoint)
        self.vocabulary = vocabulary_of(metadata)
        self.run, self.device, self._beam_width = run, device, beam_width
        self.decoding = f"beam search of width {beam_width}" if beam_width else "the likeliest symbol of each frame"
        self._frontend = metadata["settings"]["data"]["text_frontend"]
        network = load_model(self.checkpoint, metadata, device, task="asr")

        def recognise(wave, samples):
            with tf.device(device):
                return network.compute_logits(log_mel(wave, samples), frame_count(samples))

        signature = [tf.TensorSpec([None, None], tf.float32), tf.TensorSpec([None], tf.int32)]
        self._recognise = tf.function(recognise, input_signature=signature)
        self._texts([np.zeros(SAMPLE_RATE_HZ, np.float32)])  # to trace belongs to loading, not to the first wave
        log.info("recogniser     %s, step %d", run, metadata["step"])

    def transcribe(self, waves: Iterable[np.ndarray]) -> Iterator[str]:
        """The text of each wave, as the run writes texts: see `normalise_reference`.

        Waves are taken and texts given as they come, about ten minutes of speech at a time. A wave longer than 20 s is
        cut at quiet places, and the texts of its parts are joined by spaces.

        Args:
            waves: float32 [samples] in [-1, 1] at 22,050 Hz each, of any lengths.
        """
        for group in groups(waves, round(GROUP_S * SAMPLE_RATE_HZ)):
            parts = [cut(wave) for wave in group]
            said = iter(self._texts([piece for own in parts for piece in own]))
            for own in parts:
                yield " ".join(filter(None, [next(said).strip() for _ in own]))

    def normalise_reference(self, text: str, language: str) -> str:
        """A text as the run would write it: by its front end, so in lower case, or as phonemes.

        Raises:
            DataError: a language or a symbol that the run does not know.
        """
        if language not in self.vocabulary.languages:
            raise DataError(
                f"a text in '{language}' was to be heard, but {self.run} was trained on "
                f"{', '.join(self.vocabulary.languages)}. Give a recogniser of that language."
            )
        symbols = symbols_of(text, language, self._frontend)
        self.vocabulary.symbols.encode(symbols)
        return "".join(symbols)

    def _texts(self, pieces: Sequence[np.ndarray]) -> list[str]:
        said = [""] * len(pieces)
        for places, padded in batches([len(piece) for piece in pieces]):
            wave = np.zeros((len(places), padded), np.float32)
            for row, place in zip(wave, places, strict=True):
                row[: len(pieces[place])] = pieces[place]
            # The mel is of nothing shorter; what is added is silence.
            samples = np.array([max(len(pieces[place]), PAD_SAMPLES + 1) for place in places], np.int32)
            with tf.device(self.device):
                logits, frames = self._recognise(tf.constant(wave), tf.constant(samples))
                found = (
                    beam_search_decode(logits, frames, self._beam_width)
                    if self._beam_width
                    else greedy_decode(logits, frames)
                )
            for place, text in zip(places, decoded_texts(*found, self.vocabulary.symbols), strict=True):
                said[place] = text
        return said
