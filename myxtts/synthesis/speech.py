"""From a command line to a sound file."""

import io
import logging
from pathlib import Path

import soundfile

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.schema import Placement
from myxtts.errors import ConfigError
from myxtts.files import write_whole
from myxtts.placement import devices
from myxtts.placement.routes import plan_routes
from myxtts.synthesis.voice import Voice

FORMATS = {".wav": "WAV", ".flac": "FLAC", ".ogg": "OGG"}

log = logging.getLogger(__name__)


def write_speech(
    run: Path, text: str, reference: Path, out: Path, language: str | None, speed: float, seed: int
) -> None:
    """Speak a text into a file, on GPU 0 or, without one, on the CPU.

    Raises:
        UserError: the run, the reference, the text or the output cannot be used.
    """
    if out.suffix.lower() not in FORMATS:
        raise ConfigError(f"--out {out} has no known ending. Use one of {', '.join(FORMATS)}.")
    if out.is_dir():
        raise ConfigError(f"--out {out} was asked for, but that is a folder. Name a file in it.")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out} was asked for, but there is no folder {out.parent}. Make it first.")
    placement = plan_routes(Placement(), devices.gpu_count())
    devices.configure(placement)
    wave = Voice(run, placement.routes[0].model).speak(text, reference, language, speed, seed)
    file = io.BytesIO()
    soundfile.write(file, wave, SAMPLE_RATE_HZ, format=FORMATS[out.suffix.lower()])
    write_whole(out, file.getvalue())
    log.info("%s: %.2f s of speech", out, len(wave) / SAMPLE_RATE_HZ)
