"""A voice by any name: of an index, a folder, a file, a run."""

import logging
from pathlib import Path
from typing import Any

from myxtts.base.errors import ConfigError
from myxtts.base.names import base_language
from myxtts.speak.player import Speaker
from myxtts.speak.voices import open_exported, voice_for, voice_named

log = logging.getLogger(__name__)


# What exists is a path. A published folder speaks by its exported voice, which needs no TensorFlow,
# unless an option is given that only a run has.
def open_speaker(
    voice: str | None, text: str = "", language: str | None = None, **of_run: Any
) -> Speaker:
    """Open a voice, and say in the log what it is.

    Raises ConfigError if there is none, or it does not speak the language, CheckpointError if it
    cannot be used.

    Args:
        voice: a folder of a run or of an exported voice, a file *.onnx, also of Piper, or a name of
            the index; None means the first that fits the text.
        of_run: further arguments of `RunSpeaker`.
    """
    path, about = Path(voice or ""), ""
    if voice is None or not path.exists():
        found = voice_for(text, language) if voice is None else voice_named(voice)
        path, about = found.path, f"{found.licence}; {found.consent}; "
        voice = found.name
    options = {name: value for name, value in of_run.items() if value}
    speaker: Speaker
    if (path / "checkpoints").is_dir() and (options or not (path / "onnx").is_dir()):
        from myxtts.tasks.tts.run_speaker import RunSpeaker  # takes a while

        speaker = RunSpeaker(path, language=language, **options)
    elif options:
        raise ConfigError(
            f"--{next(iter(options)).rstrip('s')} is for a run, but {voice} is an exported voice."
            " Leave it out."
        )
    else:
        speaker = open_exported(path)
    log.info("voice          %s: %sthe speech is synthetic", voice, about)
    base = base_language(speaker.language)
    if language and base_language(language) != base:
        raise ConfigError(
            f"--language {language} was given, but the voice {voice} speaks {speaker.language}."
            " Leave it out, or choose another --voice: `myxtts voices` lists them."
        )
    return speaker
