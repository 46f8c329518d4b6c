"""From a command line to texts. Free of TensorFlow until all that can be checked without it is checked."""

import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from myxtts.audio.format import SAMPLE_RATE_HZ
from myxtts.config.schema import PlacementConfig
from myxtts.data.recording import check_recording, read_recording
from myxtts.files import check_writable, write_whole
from myxtts.placement.routes import plan_routes

# What check_recording and read_recording are told of a file.
_WANTED = "recording", 0.1, "Give audio files, each with 0.1 s of speech or more."

log = logging.getLogger(__name__)


def write_transcripts(
    run: Path, files: Sequence[Path], checkpoint: str | None = None, beam_width: int = 0, json_file: Path | None = None
) -> None:
    """Print a line for each file, its name and its text with a tab between, on GPU 0 or, without one, on the CPU.

    Args:
        checkpoint, beam_width: as Transcriber has them.
        json_file: gets the same, when all files are done.

    Raises:
        UserError: the run, a file or the output cannot be used.
    """
    check_writable("--json", json_file)
    for file in files:
        check_recording(file, *_WANTED)
    from myxtts.placement import devices  # this and the next import TensorFlow, which takes seconds
    from myxtts.recognition.transcriber import Transcriber

    placement = plan_routes(PlacementConfig(), devices.gpu_count())
    devices.configure(placement)
    transcriber = Transcriber(run, placement.routes[0].model, checkpoint, beam_width)
    started_s = time.perf_counter()
    heard = []
    lengths_s: list[float] = []

    def waves() -> Iterator[np.ndarray]:
        for file in files:
            wave = read_recording(file, *_WANTED)
            lengths_s.append(len(wave) / SAMPLE_RATE_HZ)
            yield wave

    for file, text in zip(files, transcriber.transcribe(waves()), strict=True):
        name = os.fsencode(file).decode(errors="replace")  # which need not be UTF-8
        print(f"{name}\t{text}", flush=True)
        heard.append({"file": name, "seconds": round(lengths_s[len(heard)], 3), "text": text})
    took_s = time.perf_counter() - started_s
    log.info("%.1f s of speech in %.1f s, real-time factor %.3f", sum(lengths_s), took_s, took_s / sum(lengths_s))
    if json_file is not None:
        document = {"run": str(run), "checkpoint": transcriber.checkpoint.name, "files": heard}
        write_whole(json_file, json.dumps(document, ensure_ascii=False, indent=1).encode())
