"""Speech synthesis with a trained run: from a text and reference recordings to waves."""

import itertools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from myxtts.audio.audio_file import REFERENCE, read_recording
from myxtts.audio.format import HOP_SAMPLES, mel_bands, sample_rate_hz
from myxtts.audio.loudness import with_loudness
from myxtts.audio.mel import log_mel
from myxtts.audio.vocoder import vocode
from myxtts.base.errors import DataError
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.config.schema import DataConfig
from myxtts.config.synthesis import SynthesisOptions
from myxtts.speak.chunks import Chunk, SpokenSentence, encode_text, fade_ends, joined
from myxtts.tasks import loading
from myxtts.tasks.tts.task import synthesis_options
from myxtts.text.languages import choose_language
from myxtts.text.symbols import BEGIN_ID, END_ID, PADDING_ID

BATCH_CHUNKS = 8
# The option `accent_strength` with --accent. With 1, fewer people keep their voice in a language
# that they never spoke; with 2, speech is rated worse (docs/experiments/tts.md).
ACCENT_STRENGTH = 1.5

log = logging.getLogger(__name__)


class Synthesizer:
    """Speech synthesis with the weights of a run, averaged if it averages them.

        synthesizer = Synthesizer(Path("runs/demo"), vocoder=Path("runs/vocoder"))
        wave = synthesizer.synthesize("Good morning.", references=[Path("speaker.wav")])

    `options` are the default SynthesisOptions, from the settings of the run. Raises CheckpointError
    without a usable checkpoint or vocoder, and ConfigError for iterations of another vocoder than
    Griffin-Lim.

    Args:
        device: which must be configured already.
        vocoder: folder of a vocoder's run, or "griffin-lim"; by default the vocoder that the run
            names, or else Griffin-Lim.
        iterations: of Griffin-Lim; by default 30.
        checkpoint: its name; by default the best one, or the newest if none was validated.
        lexicon: readings of words besides those of the run; see `read_lexicon`.
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
        trained = TrainedRun.open_for_use(run, checkpoint)
        config = trained.record.settings
        self.options = synthesis_options(config.model)
        self._frontend = trained.record.frontend.with_words(lexicon or {})
        self._data = config.data
        self._vocabulary, self._language = trained.record.vocabulary, trained.record.language
        self._device = device
        choice = trained.select_vocoder(vocoder, iterations)
        self._network = loading.load_network(trained, device, "tts")
        log.info("synthesizer    %s, step %d", run, trained.record.step)
        self._vocoder = loading.load_vocoder(choice, device)
        # Traces and optimises the graphs now, so that the first sentence does not wait for it.
        tokens = np.array([BEGIN_ID, END_ID], np.int32)
        self._synthesize_batch([tokens], self._reference_mel(()), 0, SynthesisOptions())

    def synthesize(
        self,
        text: str,
        references: Sequence[Path] = (),
        language: str | None = None,
        options: SynthesisOptions | None = None,
        accent: str | None = None,
    ) -> np.ndarray:
        """Return the concatenated waves of `speak`."""
        sentences = self.speak(text, references, language, options, accent)
        return np.concatenate([sentence.wave for sentence in sentences])

    def speak(
        self,
        text: str,
        references: Sequence[Path] = (),
        language: str | None = None,
        options: SynthesisOptions | None = None,
        accent: str | None = None,
    ) -> Iterator[SpokenSentence]:
        """Synthesize a text of any length; yield its sentences.

        Waves are float32 [samples] in [-1, 1], with 0 at both ends, so that joined sentences
        have no clicks. The first sentence is synthesized alone, so that it is there
        early, then 2, 4 and always 8 at a time. All use the same seed. The call itself raises
        DataError if the text has nothing to speak, the language is missing or unknown, or a
        reference is unusable.

        Args:
            text: see `split_text`.
            references: audio files of the speaker, of half a second or longer, whose beginnings
                together condition the model; without them its learned default does.
            language: one of the run; by default the only one of its corpus.
            options: by default `self.options`.
            accent: language of the run that the speaker speaks, whose accent is exaggerated; by
                default the text's. Where each language has few speakers, the network learns
                from it who speaks.
        """
        trained = self._vocabulary.languages
        language = choose_language(language or self._language, trained)
        row = trained.index(choose_language(accent or language, trained, "--accent"))
        chunks = encode_text(text, language, self._frontend, self._vocabulary.symbols)
        mel = self._reference_mel(references)
        options = options or self.options
        if accent:
            options = replace(options, accent_strength=ACCENT_STRENGTH)
        spoken = self._speak(chunks, mel, row, options)
        return joined(spoken, language, self._frontend, options.speed)

    # Chunks are synthesized in batches of 1, 2, 4 and then 8, and yielded one by one.
    def _speak(
        self, chunks: Sequence[Chunk], reference: np.ndarray, row: int, options: SynthesisOptions
    ) -> Iterator[tuple[Chunk, np.ndarray, np.ndarray]]:
        first, size = 0, 1
        while first < len(chunks):
            batch = chunks[first : first + size]
            started_s = time.perf_counter()
            tokens = [chunk.tokens for chunk in batch]
            waves, paths = self._synthesize_batch(tokens, reference, row, options)
            first += len(batch)
            size = min(2 * size, BATCH_CHUNKS)
            speech_s, elapsed_s = sum(map(len, waves)) / sample_rate_hz(), time.perf_counter()
            line = "sentence %d of %d: %.1f s of speech in %.1f s"
            log.info(line, first, len(chunks), speech_s, elapsed_s - started_s)
            if not all(np.isfinite(wave).all() for wave in waves):
                given = f"the speech of {batch[0].text[:60]!r} with guidance {options.guidance:g}"
                raise DataError(f"{given} is not finite. Lower --guidance, or train longer.")
            for wave, path, chunk in zip(map(fade_ends, waves), paths, batch, strict=True):
                # Token 0 marks the beginning, and token 1 is the first symbol.
                frames = np.searchsorted(path, np.arange(1, len(chunk.tokens)))
                yield chunk, wave, HOP_SAMPLES * frames

    def _synthesize_batch(
        self,
        texts: Sequence[np.ndarray],
        reference: np.ndarray,
        language: int,
        options: SynthesisOptions,
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the waves of texts, int32 [N] each, with a reference log-mel, float32 [R, 80], and
        the token of each frame, int32 [T] each.
        """
        rows = len(texts)
        tokens = np.array(list(itertools.zip_longest(*texts, fillvalue=PADDING_ID)), np.int32).T
        padded = reference[None] if len(reference) else np.zeros([1, 1, mel_bands()], np.float32)
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

    def _reference_mel(self, references: Sequence[Path]) -> np.ndarray:
        with tf.device(self._device):
            return reference_mel(references, self._data)


def reference_mel(references: Sequence[Path], data: DataConfig) -> np.ndarray:
    """Return the log-mels of the beginnings of all references, float32 [R, 80], concatenated."""
    mels = [np.zeros([0, mel_bands()], np.float32)]
    for reference in references:
        samples = int(data.reference_seconds * sample_rate_hz())
        wave = read_recording(reference, REFERENCE, samples, data.trim)
        mels.append(log_mel(with_loudness(tf.constant(wave[None]), data.loudness))[0].numpy())
    return np.concatenate(mels)
