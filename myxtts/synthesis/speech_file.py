"""From a command line to a sound file. Free of TensorFlow until all that can be checked without it is checked."""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import soundfile

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.schema import PlacementConfig
from myxtts.errors import ConfigError, DataError
from myxtts.placement.routes import plan_routes
from myxtts.synthesis.language import choose_language, trained_languages
from myxtts.synthesis.reference import check_reference
from myxtts.text.sentences import split_text

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
    """Speak a text into a file, on GPU 0 or, without one, on the CPU. The file is written while it is spoken.

    Args:
        language, iterations, options: as in `Synthesizer.synthesize_sentences`; the run's own by default.

    Raises:
        UserError: the run, a reference, the text or the output cannot be used.
    """
    check_usable(run, text, references, out, language)
    from myxtts.audio.griffin_lim import ITERATIONS  # this and the next two import TensorFlow, which takes seconds
    from myxtts.placement import devices
    from myxtts.synthesis.synthesizer import Synthesizer

    placement = plan_routes(PlacementConfig(), devices.gpu_count())
    devices.configure(placement)
    synthesizer = Synthesizer(run, placement.routes[0].model)
    started_s = time.perf_counter()
    asked = replace(synthesizer.options, **{name: value for name, value in options.items() if value is not None})
    waves = synthesizer.synthesize_sentences(text, references, language, asked, iterations or ITERATIONS)
    with sound_file(out) as file:
        for wave in waves:
            file.write(wave)
        speech_s = file.frames / SAMPLE_RATE_HZ
    took_s = time.perf_counter() - started_s
    log.info("%s: %.2f s of speech in %.2f s, real-time factor %.3f", out, speech_s, took_s, took_s / speech_s)


def check_usable(run: Path, text: str, references: Sequence[Path], out: Path, language: str | None) -> None:
    """Find the mistakes that can be found without TensorFlow.

    Raises:
        UserError: naming the first.
    """
    if out.suffix.lower() not in FORMATS:
        raise ConfigError(f"--out {out} has no known ending. Use one of {', '.join(FORMATS)}.")
    if out.is_dir():
        raise ConfigError(f"--out {out} was asked for, but that is a folder. Name a file in it.")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out} was asked for, but there is no folder {out.parent}. Make it first.")
    if next(split_text(text), None) is None:
        raise DataError(f"the text {text[:60]!r} has nothing to say: neither a letter nor a digit. Give some text.")
    choose_language(language, trained_languages(run))
    for reference in references:
        check_reference(reference)


@contextmanager
def sound_file(path: Path) -> Iterator[soundfile.SoundFile]:
    """A file to write waves to, which has its name when the scope ends; if that fails, nothing is left.

    Raises:
        DataError: the disk refuses.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        with soundfile.SoundFile(partial, "w", SAMPLE_RATE_HZ, channels=1, format=FORMATS[path.suffix.lower()]) as file:
            yield file
        os.replace(partial, path)
    except soundfile.LibsndfileError as error:
        raise DataError(
            f"{path} cannot be written: {error.error_string} Free space or mend the rights there."
        ) from error
    finally:
        partial.unlink(missing_ok=True)
