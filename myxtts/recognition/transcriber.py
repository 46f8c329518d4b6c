"""Speech recognition with a trained run: from waves to texts."""

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.format import PAD_SAMPLES, SAMPLE_RATE_HZ, frame_count
from myxtts.audio.mel import log_mel
from myxtts.errors import DataError
from myxtts.models.ctc_decoding import beam_search_decode, decoded_texts, greedy_decode
from myxtts.recognition.audio_chunks import bucket_batches, group_waves, split_wave
from myxtts.text.frontend import symbols_of
from myxtts.training.checkpoint_files import read_metadata
from myxtts.training.load_model import load_model
from myxtts.training.observation import Pace, no_pace
from myxtts.training.runs import select_checkpoint, vocabulary_of

# Waves that are in memory at the same time; more for a longer wave.
GROUP_S = 600.0

log = logging.getLogger(__name__)


class NetworkTranscriber:
    """Speech recognition with the weights that a network has.

    Args:
        run: folder of the run of the network.
        metadata: of a checkpoint of the run, for its front end and vocabulary.
        network: an `ASR`, on the device.
        device: the device to compute on.
        beam_width: see `Transcriber`.

    Attributes:
        run, device: as given.
        vocabulary: symbols and languages of the run.
        decoding: the decoding method in words.
    """

    def __init__(
        self,
        run: Path,
        metadata: Mapping[str, Any],
        network: keras.Model,
        device: str = "/CPU:0",
        beam_width: int = 0,
    ):
        self.vocabulary = vocabulary_of(metadata)
        self.run, self.device, self._beam_width = run, device, beam_width
        self.decoding = f"beam search of width {beam_width}" if beam_width else "greedy decoding"
        self._frontend = metadata["settings"]["data"]["text_frontend"]

        def recognise(wave, samples):
            with tf.device(device):
                outputs = network.compute_logits(log_mel(wave, samples), frame_count(samples))
                return outputs if beam_width else greedy_decode(*outputs)

        signature = [tf.TensorSpec([None, None], tf.float32), tf.TensorSpec([None], tf.int32)]
        self._recognise = tf.function(recognise, input_signature=signature, autograph=False)
        # Traces now, not at the first wave.
        self._transcribe_chunks([np.zeros(SAMPLE_RATE_HZ, np.float32)], no_pace)

    def transcribe(self, waves: Iterable[np.ndarray], pace: Pace = no_pace) -> Iterator[str]:
        """Transcribe waves one by one, in the notation of the run (see `normalise_reference`).

        About ten minutes of speech are read and transcribed at a time. A wave longer than 20 s is
        split at quiet points, and the texts of its chunks are joined by spaces.

        Args:
            waves: float32 [samples] in [-1, 1] at 22,050 Hz each, of any lengths.
            pace: called before each batch.

        Yields:
            The text of each wave.
        """
        for group in group_waves(waves, round(GROUP_S * SAMPLE_RATE_HZ)):
            chunks_by_wave = [split_wave(wave) for wave in group]
            chunks = list(itertools.chain.from_iterable(chunks_by_wave))
            texts = iter(self._transcribe_chunks(chunks, pace))
            for chunks_of_wave in chunks_by_wave:
                yield " ".join(filter(None, [next(texts).strip() for _ in chunks_of_wave]))

    def normalise_reference(self, text: str, language: str) -> str:
        """Convert a reference text to the notation of the run: the output of its text front end.

        The notation is text in lower case, or phonemes.

        Raises:
            DataError: the run was not trained on the language or on a symbol.
        """
        if language not in self.vocabulary.languages:
            raise DataError(
                f"the text has language '{language}', but {self.run} was trained on "
                f"{', '.join(self.vocabulary.languages)}. Give a recogniser of that language."
            )
        symbols = symbols_of(text, language, self._frontend)
        self.vocabulary.symbols.encode(symbols)
        return "".join(symbols)

    def _transcribe_chunks(self, chunks: Sequence[np.ndarray], pace: Pace) -> list[str]:
        texts = [""] * len(chunks)
        for indices, padded in bucket_batches([len(chunk) for chunk in chunks]):
            pace()
            wave = np.zeros((len(indices), padded), np.float32)
            for row, index in zip(wave, indices, strict=True):
                row[: len(chunks[index])] = chunks[index]
            # A mel needs PAD_SAMPLES + 1 samples; shorter chunks are extended by silence.
            samples = np.array(
                [max(len(chunks[index]), PAD_SAMPLES + 1) for index in indices], np.int32
            )
            with tf.device(self.device):
                ids, counts = self._recognise(tf.constant(wave), tf.constant(samples))
                # They are logits and their frames.
                if self._beam_width:
                    ids, counts = beam_search_decode(ids, counts, self._beam_width)
            for index, text in zip(
                indices, decoded_texts(ids, counts, self.vocabulary.symbols), strict=True
            ):
                texts[index] = text
        return texts


class Transcriber(NetworkTranscriber):
    """Speech recognition with the weights of a run.

        transcriber = Transcriber(Path("runs/asr"))
        for text in transcriber.transcribe([wave]):
            print(text)

    Args:
        run: folder of a run with --task asr.
        device: the device to compute on, which must be configured already.
        checkpoint: name of a checkpoint; by default the best, or the newest. Averaged weights are
            used if the run has them.
        beam_width: number of prefixes of the beam search, which runs on the host; 0 takes the most
            likely symbol of each frame on the device (greedy decoding).

    Attributes:
        checkpoint: folder of the checkpoint.

    Raises:
        CheckpointError: there is no usable checkpoint, or the run has another task.
    """

    def __init__(
        self, run: Path, device: str = "/CPU:0", checkpoint: str | None = None, beam_width: int = 0
    ):
        self.checkpoint = select_checkpoint(run, checkpoint)
        metadata = read_metadata(self.checkpoint)
        network = load_model(self.checkpoint, metadata, device, task="asr")
        super().__init__(run, metadata, network, device, beam_width)
        log.info("transcriber    %s, step %d", run, metadata["step"])
