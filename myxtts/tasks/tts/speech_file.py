"""Speech into a file or onto stdout. Checks all it can before it imports TensorFlow."""

import fcntl
import io
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile

from myxtts.audio.audio_file import REFERENCE, BlockwiseFile, check_recording
from myxtts.audio.format import sample_rate_hz
from myxtts.audio.sound_header import HEADER_BYTES, wav_header
from myxtts.base.errors import ConfigError, DataError
from myxtts.base.files import check_writable, partial_file_of
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.text.frontend import read_lexicon
from myxtts.text.languages import choose_language
from myxtts.text.sentences import empty_text_message, split_text
from myxtts.text.times import check_times_file, write_times

FORMATS = {".wav": "WAV", ".flac": "FLAC", ".ogg": "OGG"}

log = logging.getLogger(__name__)


# What can fail cheaply comes first: text, run, language, vocoder, lexicon and files, without
# TensorFlow. Then TensorFlow is loaded and the voice built. Sentences are written as they come, so
# a listener at a pipe hears the first while the others are computed; words' times come last.
def write_speech(
    run: Path,
    text: str,
    references: Sequence[Path],
    out: Path | BinaryIO,
    language: str | None = None,
    vocoder: str | None = None,
    iterations: int | None = None,
    checkpoint: str | None = None,
    lexicon: Path | None = None,
    times: Path | None = None,
    accent: str | None = None,
    **options,
) -> None:
    """Synthesize a text, on GPU 0 or, without a GPU, on the CPU, and write it sentence by sentence.

    Raises UserError if the run, the vocoder, a reference, the text or the output is unusable. Other
    arguments are as in `Synthesizer` and its `speak`.

    Args:
        out: a file to make, or a pipe that gets the sound as WAV.
        lexicon: a file for `read_lexicon`.
        times: a file for the times of words, written when all is spoken; see `write_times`.
        options: fields of SynthesisOptions. Missing fields and None mean the default of the run.
    """
    started_s = time.perf_counter()
    if next(split_text(text), None) is None:
        raise DataError(empty_text_message(text))
    trained = TrainedRun.open_for_use(run, checkpoint, "tts")
    languages = trained.record.languages
    choose_language(accent or choose_language(language, languages), languages, "--accent")
    trained.select_vocoder(vocoder, iterations)
    words = read_lexicon(lexicon)
    check_files(references, out, times)
    # This and the next import load TensorFlow.
    from myxtts.placement import devices
    from myxtts.tasks.tts.synthesizer import Synthesizer

    device = devices.configure_default().routes[0].model
    synthesizer = Synthesizer(run, device, vocoder, iterations, checkpoint, words)
    loaded_s = time.perf_counter()
    spoken = replace(synthesizer.options, **{k: v for k, v in options.items() if v is not None})
    sentences = synthesizer.speak(text, references, language, spoken, accent)
    timed_sentences, speech_s = [], 0.0
    with sound_file(out) if isinstance(out, Path) else wav_stream(out) as sound:
        for wave, compute_times in sentences:
            sound.write(wave)
            if not speech_s:
                first_s, loading_s = time.perf_counter() - loaded_s, loaded_s - started_s
                log.info("first sound    after %.2f s, and %.1f s of loading", first_s, loading_s)
            speech_s += len(wave) / sample_rate_hz()
            timed_sentences += [compute_times()] if times else []
    elapsed_s = time.perf_counter() - loaded_s
    line = "%s: %.2f s of speech in %.2f s, real-time factor %.3f"
    name = out if isinstance(out, Path) else "stream"
    log.info(line, name, speech_s, elapsed_s, elapsed_s / speech_s)
    if times:
        write_times(times, timed_sentences, speech_s)


def check_files(references: Sequence[Path], out: Path | BinaryIO, times: Path | None) -> None:
    """Raise UserError if a reference or an output is unusable, or both are one file."""
    for reference in references:
        check_recording(reference, REFERENCE)
    if isinstance(out, Path):
        if out.suffix.lower() not in FORMATS:
            raise ConfigError(
                f"--out {out} has an unknown file name extension. Use one of {', '.join(FORMATS)}."
            )
        check_writable("--out", out)
        if out.exists() and any(out.samefile(reference) for reference in references):
            raise ConfigError(
                f"--out {out} is one of the recordings of --reference. Give another --out."
            )
    check_times_file(times)


@contextmanager
def sound_file(path: Path) -> Iterator[BlockwiseFile]:
    """Open a sound file, renamed to `path` at the end; after an error nothing is left.

    Raises DataError if writing failed.
    """
    partial = partial_file_of(path)
    kind = {"channels": 1, "format": FORMATS[path.suffix.lower()]}
    try:
        with BlockwiseFile(os.fsencode(partial), "w", sample_rate_hz(), **kind) as file:
            yield file
        os.replace(partial, path)
    except soundfile.LibsndfileError as error:
        raise DataError(
            f"{path} cannot be written: {error.error_string} Free some disk space, or fix the"
            f" permissions of {path.parent}."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


class WavStream:
    """Writes waves as one WAV, each at once, with the samples that soundfile would write."""

    def __init__(self, pipe: BinaryIO):
        self._pipe = pipe
        self._written = 0

    def write(self, wave: np.ndarray) -> None:
        """Write a wave, float32 [samples] in [-1, 1]; the first one after the header."""
        raw = io.BytesIO()
        soundfile.write(
            raw, wave, sample_rate_hz(), format="RAW", subtype="PCM_16", endian="LITTLE"
        )
        header = b"" if self._written else wav_header()
        remaining = memoryview(header + raw.getvalue())
        # The stdout of PYTHONUNBUFFERED may take a part.
        while remaining:
            written = self._pipe.write(remaining)
            self._written += written
            remaining = remaining[written:]
        self._pipe.flush()

    def end(self) -> None:
        """Write the length into the header, if the sound is in a file that allows it."""
        pipe = self._pipe
        # What is in a pipe, or in a file after `>>`, cannot be written again.
        if not self._written or not pipe.seekable():
            return
        if not fcntl.fcntl(pipe.fileno(), fcntl.F_GETFL) & os.O_APPEND:
            pipe.seek(-self._written, os.SEEK_CUR)
            pipe.write(wav_header(self._written - HEADER_BYTES))
            pipe.seek(0, os.SEEK_END)
            pipe.flush()


@contextmanager
def wav_stream(pipe: BinaryIO) -> Iterator[WavStream]:
    """Open a WavStream; after an error the sound so far remains, of unknown length."""
    stream = WavStream(pipe)
    yield stream
    stream.end()
