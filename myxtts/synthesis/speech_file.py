"""Speech synthesis into a sound file. Checks all it can before it imports TensorFlow, which takes seconds."""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import soundfile

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.errors import ConfigError, DataError
from myxtts.synthesis.language import choose_language, trained_languages
from myxtts.synthesis.reference import check_reference
from myxtts.text.sentences import empty_text_message, split_text

FORMATS = {".wav": "WAV", ".flac": "FLAC", ".ogg": "OGG"}

log = logging.getLogger(__name__)


def write_speech(
    run: Path,
    text: str,
    references: Sequence[Path],
    out: Path,
    language: str | None = None,
    iterations: int | None = None,
    **options,
) -> None:
    """Synthesize a text into a file, on GPU 0 or, without a GPU, on the CPU. The file is written sentence by sentence.

    Args:
        language, iterations: as in `Synthesizer.synthesize_sentences`.
        options: fields of SynthesisOptions. Missing fields and None mean the default of the run.

    Raises:
        UserError: the run, a reference, the text or the output is unusable.
    """
    check_inputs(run, text, references, out, language)
    from myxtts.audio.griffin_lim import ITERATIONS  # this and the next two imports load TensorFlow
    from myxtts.placement import devices
    from myxtts.synthesis.synthesizer import Synthesizer

    placement = devices.configure_default()
    synthesizer = Synthesizer(run, placement.routes[0].model)
    started_s = time.perf_counter()
    changed = {name: value for name, value in options.items() if value is not None}
    waves = synthesizer.synthesize_sentences(
        text, references, language, replace(synthesizer.options, **changed), iterations or ITERATIONS
    )
    with sound_file(out) as file:
        for wave in waves:
            file.write(wave)
        speech_s = file.frames / SAMPLE_RATE_HZ
    elapsed_s = time.perf_counter() - started_s
    log.info("%s: %.2f s of speech in %.2f s, real-time factor %.3f", out, speech_s, elapsed_s, elapsed_s / speech_s)


def check_inputs(run: Path, text: str, references: Sequence[Path], out: Path, language: str | None) -> None:
    """Check everything that can be checked without TensorFlow.

    Raises:
        UserError: the first fault.
    """
    if out.suffix.lower() not in FORMATS:
        raise ConfigError(f"--out {out} has an unknown file name extension. Use one of {', '.join(FORMATS)}.")
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder. Give the name of a file.")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out} cannot be written: there is no folder {out.parent}. Make the folder first.")
    if next(split_text(text), None) is None:
        raise DataError(empty_text_message(text))
    choose_language(language, trained_languages(run))
    for reference in references:
        check_reference(reference)


@contextmanager
def sound_file(path: Path) -> Iterator[soundfile.SoundFile]:
    """Open a sound file for writing. It is renamed to `path` when the block ends; after an error, nothing is left.

    Raises:
        DataError: writing failed.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with soundfile.SoundFile(partial, "w", SAMPLE_RATE_HZ, channels=1, format=FORMATS[path.suffix.lower()]) as file:
            yield file
        os.replace(partial, path)
    except soundfile.LibsndfileError as error:
        raise DataError(
            f"{path} cannot be written: {error.error_string} "
            f"Free some disk space, or fix the permissions of {path.parent}."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
