"""Speech recognition with a trained run: from waves and files to texts."""

import itertools
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from myxtts.audio.audio_file import RECORDING, read_recording, speech_span
from myxtts.audio.format import HOP_SAMPLES, PAD_SAMPLES, frame_count, frames_in, sample_rate_hz
from myxtts.audio.loudness import with_loudness
from myxtts.audio.mel import log_mel
from myxtts.base.errors import DataError
from myxtts.base.files import write_json
from myxtts.checkpoints.files import Record
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.placement import devices
from myxtts.tasks import loading
from myxtts.tasks.asr.ctc import beam_search_decode, decoded_texts, emissions
from myxtts.tasks.base import Throttle, no_throttle
from myxtts.text.symbols import FIRST_SYMBOL_ID
from myxtts.text.times import TimedWord, time_words, write_times
from myxtts.text.words import words_of_symbols

GROUP_S = 600.0  # of waves in memory at the same time; more for a longer wave
MAX_CHUNK_S = 20.0
BUCKETS_S = (2.5, 5.0, 10.0, MAX_CHUNK_S)  # lengths to which chunks are padded
BATCH_S = 80.0  # padded seconds of a batch
PAUSE_S = 0.2  # over which the power of a pause is averaged

log = logging.getLogger(__name__)


class Transcript(NamedTuple):
    """What was heard, the words of each chunk, and the mean probability of a symbol.

    A beam search has no times and no probability.
    """

    text: str
    sentences: list[list[TimedWord]]
    surety: float


class NetworkTranscriber:
    """Speech recognition with the weights that a network on the device has; see `Transcriber`.

    The record of a checkpoint of its run has the front end and the vocabulary.
    """

    def __init__(
        self,
        run: Path,
        record: Record,
        network: keras.Model,
        device: str = "/CPU:0",
        beam_width: int = 0,
    ):
        self.run, self.device, self._beam_width = run, device, beam_width
        self.record, self.vocabulary = record, record.vocabulary
        self.decoding = f"beam search of width {beam_width}" if beam_width else "greedy decoding"
        self._frontend = record.frontend
        self._frame_s = network.subsampling * HOP_SAMPLES / sample_rate_hz()
        loudness, self._trim = record.settings.data.loudness, record.settings.data.trim

        def recognise(wave, samples):
            with tf.device(device):
                mel = log_mel(with_loudness(wave, loudness, samples), samples)
                logits, frames = network.compute_logits(mel, frame_count(samples))
                # The best symbols alone make no beam.
                if beam_width:
                    return logits, frames
                best, begins = emissions(logits, frames)
                likely = tf.reduce_max(tf.nn.log_softmax(logits), axis=2)
                real = tf.sequence_mask(frames, tf.shape(logits)[1], tf.float32)
                return best, begins, tf.reduce_sum(likely * real, axis=1)

        signature = [tf.TensorSpec([None, None], tf.float32), tf.TensorSpec([None], tf.int32)]
        self._recognise = tf.function(recognise, input_signature=signature, autograph=False)
        # Traces now, so that the first wave does not wait for it.
        self._transcribe_chunks([np.zeros(sample_rate_hz(), np.float32)], no_throttle)

    def transcribe(
        self, waves: Iterable[np.ndarray], throttle: Throttle = no_throttle
    ) -> Iterator[str]:
        """Yield the text of each wave, float32 [samples] in [-1, 1], in the notation
        of the run (see `normalise_reference`).
        """
        return (heard.text for heard in self.transcribe_timed(waves, throttle))

    def transcribe_scored(self, waves: Iterable[np.ndarray]) -> Iterator[tuple[str, float]]:
        """Yield the text of each wave, and how sure it is: the mean probability of a symbol."""
        return ((heard.text, heard.surety) for heard in self.transcribe_timed(waves))

    # Waves come in one by one. They are collected to groups of ten minutes, trimmed, and split at
    # pauses into chunks of at most 20 s. The chunks of a whole group are batched by length, so that
    # little is padded, and recognised. Then the transcripts are dealt out again: each wave takes as
    # many as it has chunks, and adds the samples before a chunk to the times of its words.
    def transcribe_timed(
        self, waves: Iterable[np.ndarray], throttle: Throttle = no_throttle
    ) -> Iterator[Transcript]:
        """Do the same as `transcribe`, and yield the times of each chunk's words with the text.

        A symbol lasts until the frame that emits the next one.
        """
        for group in group_waves(waves, round(GROUP_S * sample_rate_hz())):
            spans = [(0, len(wave)) for wave in group]
            if self._trim is not None:
                spans = [speech_span(wave, self._trim) for wave in group]
            heard = [wave[first:end] for wave, (first, end) in zip(group, spans, strict=True)]
            chunks_by_wave = [split_wave(wave) for wave in heard]
            chunks = list(itertools.chain.from_iterable(chunks_by_wave))
            transcripts = iter(self._transcribe_chunks(chunks, throttle))
            # Times count from the start of the file, so they begin behind the silence that was cut
            # off.
            for chunks_of_wave, (first, _) in zip(chunks_by_wave, spans, strict=True):
                texts, sentences, start_s = [], [], first / sample_rate_hz()
                likely, count = 0.0, 0
                for chunk in chunks_of_wave:
                    text, symbols, edges_s, log_probability = next(transcripts)
                    likely, count = likely + log_probability, count + len(symbols)
                    texts.append(text.strip())
                    words = time_words(words_of_symbols(symbols), start_s + edges_s)
                    sentences += [words] if words else []
                    start_s += len(chunk) / sample_rate_hz()
                surety = math.exp(likely / max(count, 1)) if count else 0.0
                yield Transcript(" ".join(filter(None, texts)), sentences, surety)

    def normalise_reference(self, text: str, language: str) -> str:
        """Convert a reference text to the notation of the run; raise DataError if it has none."""
        if language not in self.vocabulary.languages:
            raise DataError(
                f"the text has language '{language}', but {self.run} was trained on "
                f"{', '.join(self.vocabulary.languages)}. Give a recogniser of that language."
            )
        symbols = self._frontend.symbols(text, language)
        self.vocabulary.symbols.encode(symbols)
        return "".join(symbols)

    def _transcribe_chunks(
        self, chunks: Sequence[np.ndarray], throttle: Throttle
    ) -> list[tuple[str, list[str], np.ndarray, float]]:
        """Return the text of each chunk, its N symbols, their edges in seconds, [N + 1], and the
        log-probability of all.
        """
        transcripts: dict[int, tuple[str, list[str], np.ndarray, float]] = {}
        for indices, padded in bucket_batches([len(chunk) for chunk in chunks]):
            throttle()
            wave = np.zeros((len(indices), padded), np.float32)
            for row, index in zip(wave, indices, strict=True):
                row[: len(chunks[index])] = chunks[index]
            # A mel needs PAD_SAMPLES + 1 samples; shorter chunks are extended by silence.
            samples = [max(len(chunks[index]), PAD_SAMPLES + 1) for index in indices]
            with tf.device(self.device):
                outputs = self._recognise(tf.constant(wave), tf.constant(samples, tf.int32))
            transcripts |= zip(indices.tolist(), self._decoded(outputs), strict=True)
        return [transcripts[index] for index in range(len(chunks))]

    def _decoded(
        self, outputs: Sequence[tf.Tensor]
    ) -> Iterator[tuple[str, list[str], np.ndarray, float]]:
        """Yield the items of `_transcribe_chunks` from the outputs of `_recognise`."""
        table = self.vocabulary.symbols
        if self._beam_width:
            ids, counts = beam_search_decode(outputs[0], outputs[1], self._beam_width)
            for text in decoded_texts(ids, counts, table):
                yield text, [], np.zeros(1), 0.0
            return
        for best, begins, likely in zip(*(of.numpy() for of in outputs), strict=True):
            frames = np.flatnonzero(begins & (best >= FIRST_SYMBOL_ID))
            symbols = table.decode(best[frames])
            edges = np.append(frames, frames[-1:] + 1)
            yield "".join(symbols), symbols, self._frame_s * edges, float(likely)


class Transcriber(NetworkTranscriber):
    """Speech recognition with the weights of a run.

        (text,) = Transcriber(Path("runs/asr")).transcribe([wave])

    The device must be configured already. The checkpoint is by default the best, or the newest. A
    beam search keeps `beam_width` prefixes, on the host; 0 decodes greedily, on the device. Raises
    CheckpointError if there is no usable checkpoint, or the run has another task.
    """

    def __init__(
        self, run: Path, device: str = "/CPU:0", checkpoint: str | None = None, beam_width: int = 0
    ):
        trained = TrainedRun.open_for_use(run, checkpoint)
        self.checkpoint = trained.checkpoint.path
        network = loading.load_network(trained, device, "asr")
        super().__init__(run, trained.record, network, device, beam_width)
        log.info("transcriber    %s, step %d", run, trained.record.step)


def write_transcripts(
    run: Path,
    files: Sequence[Path],
    checkpoint: str | None = None,
    beam_width: int = 0,
    json_file: Path | None = None,
    times: Sequence[Path] = (),
) -> None:
    """Print name, tab and text of each file, computed on GPU 0 or else on the CPU.

    Writes the same as JSON when all files are done, and the times of each file's words. Raises
    UserError if the run, a file or the output is unusable.
    """
    device = devices.configure_default().routes[0].model
    transcriber = Transcriber(run, device, checkpoint, beam_width)
    started_s = time.perf_counter()
    lengths_s: list[float] = []

    def waves() -> Iterator[np.ndarray]:
        for file in files:
            wave = read_recording(file, RECORDING)
            lengths_s.append(len(wave) / sample_rate_hz())
            yield wave

    transcripts: list[dict[str, Any]] = []
    timed = transcriber.transcribe_timed(waves())
    for number, (file, (text, sentences, _)) in enumerate(zip(files, timed, strict=True)):
        # File names need not be UTF-8.
        name = os.fsencode(file).decode(errors="replace")
        print(f"{name}\t{text}", flush=True)
        if times:
            write_times(times[number], sentences, lengths_s[number])
        transcripts.append({"file": name, "seconds": round(lengths_s[number], 3), "text": text})
    elapsed_s = time.perf_counter() - started_s
    speech_s = sum(lengths_s)
    line = "%.1f s of speech in %.1f s, real-time factor %.3f"
    log.info(line, speech_s, elapsed_s, elapsed_s / speech_s)
    if json_file is not None:
        document = {"run": str(run), "checkpoint": transcriber.checkpoint.name}
        write_json(json_file, document | {"files": transcripts})


def split_wave(wave: np.ndarray) -> list[np.ndarray]:
    """Split a wave into chunks of up to 20 s, at the quietest point of the middle third.

    A wave of up to 20 s is one chunk; the chunks of a longer one have at least 6.6 s.
    """
    if len(wave) <= MAX_CHUNK_S * sample_rate_hz():
        return [wave]
    third = len(wave) // 3
    point = third + quietest_point(wave[third : 2 * third])
    return split_wave(wave[:point]) + split_wave(wave[point:])


def quietest_point(wave: np.ndarray) -> int:
    """Return the middle sample of the 0.2 s with the least power."""
    frames = wave[: len(wave) // HOP_SAMPLES * HOP_SAMPLES].reshape(-1, HOP_SAMPLES)
    pause = frames_in(PAUSE_S)
    power = np.convolve(np.square(frames).mean(axis=1), np.ones(pause), "valid")
    minima = np.flatnonzero(power == power.min())
    return (2 * int(minima[len(minima) // 2]) + pause) * HOP_SAMPLES // 2


def bucket_batches(lengths: Sequence[int]) -> Iterator[tuple[np.ndarray, int]]:
    """Yield batches of chunks of similar lengths: indices, int [rows], and samples to pad to."""
    bounds = [round(seconds * sample_rate_hz()) for seconds in BUCKETS_S]
    bucket = np.searchsorted(bounds, lengths)
    for number, padded in enumerate(bounds):
        indices = np.flatnonzero(bucket == number)
        rows = round(BATCH_S / BUCKETS_S[number])
        for first in range(0, len(indices), rows):
            yield indices[first : first + rows], padded


def group_waves(waves: Iterable[np.ndarray], max_samples: int) -> Iterator[list[np.ndarray]]:
    """Group consecutive waves of at most `max_samples` in total; longer waves stand alone."""
    group: list[np.ndarray] = []
    for wave in waves:
        if group and sum(map(len, group)) + len(wave) > max_samples:
            yield group
            group = []
        group.append(wave)
    if group:
        yield group
