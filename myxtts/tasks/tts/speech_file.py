"""Speech into a file or onto stdout. Checks all it can before it imports TensorFlow."""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from myxtts.audio.audio_file import REFERENCE, check_recording
from myxtts.base.errors import ConfigError, DataError
from myxtts.base.files import check_writable
from myxtts.checkpoints.trained_run import TrainedRun
from myxtts.speak.chunks import SpokenSentence
from myxtts.speak.sound_file import FORMATS, write_sentences
from myxtts.text.frontend import read_lexicon
from myxtts.text.languages import choose_language
from myxtts.text.sentences import empty_text_message, split_text
from myxtts.text.times import check_times_file

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
    language = trained.record.choose_language(language)
    choose_language(accent or language, trained.record.languages, "--accent")
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
    speech = synthesizer.speak(text, references, language, spoken, accent)

    def sentences() -> Iterator[SpokenSentence]:
        yield next(speech)
        # It is written once the second sentence, or the end, is asked for.
        first_s, loading_s = time.perf_counter() - loaded_s, loaded_s - started_s
        log.info("first sound    after %.2f s, and %.1f s of loading", first_s, loading_s)
        yield from speech

    speech_s = write_sentences(out, sentences(), times)
    elapsed_s = time.perf_counter() - loaded_s
    line = "%s: %.2f s of speech in %.2f s, real-time factor %.3f"
    name = out if isinstance(out, Path) else "stream"
    log.info(line, name, speech_s, elapsed_s, elapsed_s / speech_s)


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
