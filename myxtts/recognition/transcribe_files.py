"""Transcription of files. Checks all it can before it imports TensorFlow, which takes seconds."""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.data.audio_file import check_recording, read_recording
from myxtts.data.audio_folder import suffix_of
from myxtts.errors import ConfigError
from myxtts.files import check_writable, write_json

# Arguments of check_recording and read_recording: the kind of file, its shortest length, and what
# to do.
_REQUIREMENTS = "recording", 0.1, "Give audio files, each with at least 0.1 s of speech."

log = logging.getLogger(__name__)


def write_transcripts(
    run: Path,
    files: Sequence[Path],
    checkpoint: str | None = None,
    beam_width: int = 0,
    json_file: Path | None = None,
) -> None:
    """Print name, tab and text of each file, computed on GPU 0 or else on the CPU.

    Args:
        checkpoint, beam_width: as in Transcriber.
        json_file: file for the same content as JSON, written when all files are done.

    Raises:
        UserError: the run, a file or the output is unusable.
    """
    check_writable("--json", json_file)
    if json_file is not None and suffix_of(json_file.name):
        raise ConfigError(
            f"--json {json_file} was given, but that is the name of a recording, which would be"
            " replaced. Name a JSON file after --json, and then the recordings."
        )
    for file in files:
        check_recording(file, *_REQUIREMENTS)
    # This and the next import load TensorFlow.
    from myxtts.placement import devices
    from myxtts.recognition.transcriber import Transcriber

    placement = devices.configure_default()
    transcriber = Transcriber(run, placement.routes[0].model, checkpoint, beam_width)
    started_s = time.perf_counter()
    transcripts: list[dict[str, Any]] = []
    lengths_s: list[float] = []

    def waves() -> Iterator[np.ndarray]:
        for file in files:
            wave = read_recording(file, *_REQUIREMENTS)
            lengths_s.append(len(wave) / SAMPLE_RATE_HZ)
            yield wave

    for file, text in zip(files, transcriber.transcribe(waves()), strict=True):
        # File names need not be UTF-8.
        name = os.fsencode(file).decode(errors="replace")
        print(f"{name}\t{text}", flush=True)
        transcripts.append(
            {"file": name, "seconds": round(lengths_s[len(transcripts)], 3), "text": text}
        )
    elapsed_s = time.perf_counter() - started_s
    speech_s = sum(lengths_s)
    line = "%.1f s of speech in %.1f s, real-time factor %.3f"
    log.info(line, speech_s, elapsed_s, elapsed_s / speech_s)
    if json_file is not None:
        checkpoint_name = transcriber.checkpoint.name
        document = {"run": str(run), "checkpoint": checkpoint_name, "files": transcripts}
        write_json(json_file, document)
