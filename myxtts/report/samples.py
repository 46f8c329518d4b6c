"""Recordings and samples of each step for the page, and the scores of evaluations.

Sounds and pictures of the newest step are a part of the page, as MP3 and JPEG. Older steps are
linked. No TensorFlow.
"""

import base64
import io
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

import numpy as np
import soundfile

LABELS = {
    "recording": "recording",
    "griffin-lim": "copy synthesis, Griffin-Lim",
    "vocoder": "copy synthesis, vocoder",
    "synthesized-griffin-lim": "synthesized, Griffin-Lim",
    "": "synthesized",
}

# Sounds and pictures within the page take 3.5 MB at most, so that it can be sent by mail.
EMBEDDED_BYTES = 3_500_000
JPEG_QUALITY = 80
# The page has the newest 100 steps and tables: each takes 3 to 30 kB, and nobody reads thousands.
SHOWN_STEPS = 100
SHOWN_SCORES = 100
EVALUATION_FOLDER = "evaluation"
SCORES = "scores.md"
# PIL raises all of them for pictures, the last one for damaged PNG.
UNREADABLE = (OSError, ValueError, SyntaxError, soundfile.SoundFileError)


def sound_file(name: str, kind: str) -> str:
    """Return the name of a sample's sound of a kind in LABELS: NAME.KIND.wav, or NAME.wav."""
    return f"{name}.{kind}.wav" if kind else f"{name}.wav"


def step_of(folder: Path) -> int:
    """Return the step of a folder `step-000500`; 0 for other names, such as the name of a copy."""
    digits = folder.name.removeprefix("step-")
    return int(digits) if digits.isdecimal() else 0


class Samples:
    """The samples of a run by step; sounds and pictures of the newest step are compressed once."""

    def __init__(self, folder: Path):
        self._folder = folder
        # By content: recordings are the same at all steps. Those of the newest page are kept.
        self._compressed: dict[int, str] = {}

    def read(self, budget_s: float) -> dict[str, Any]:
        """Return the newest SHOWN_STEPS `steps` with samples, and how many `older` ones there are.

        New files are compressed for `budget_s` of processor time of this thread, else linked.
        """
        self._deadline_s = time.thread_time() + budget_s
        self._kept, self._compressed = self._compressed, {}
        folders = filter(step_of, (self._folder / "samples").glob("step-*"))
        newest_first = sorted(folders, key=step_of, reverse=True)
        steps: list[dict[str, Any]] = []
        with suppress(FileNotFoundError):
            # A folder is missing for a moment while a repeated step replaces its samples.
            for folder in newest_first[:SHOWN_STEPS]:
                steps.append(self._step(folder, is_newest=not steps))
        return {"steps": steps, "older": max(len(newest_first) - SHOWN_STEPS, 0)}

    def _step(self, folder: Path, is_newest: bool) -> dict[str, Any]:
        files = sorted(folder.iterdir())
        texts = [file for file in files if file.suffix == ".txt"]
        pictures = [file for file in files if file.suffix == ".png"]
        url_of = self._embed if is_newest else self._link
        samples = []
        for picture in pictures:
            named = {kind: picture.with_name(sound_file(picture.stem, kind)) for kind in LABELS}
            sample = {
                "name": picture.stem,
                "sounds": [
                    [LABELS[kind], url_of(named[kind])] for kind in LABELS if named[kind] in files
                ],
                "image": url_of(picture),
                "size": _size(picture),
            }
            samples.append(sample)
        return {
            "step": step_of(folder),
            "folder": folder.name,
            "is_newest": is_newest,
            "texts": [file.read_text(encoding="utf-8", errors="replace") for file in texts],
            "is_synthesized": any(picture.with_suffix(".wav") in files for picture in pictures),
            "samples": samples,
        }

    def _link(self, file: Path) -> str:
        return quote(file.relative_to(self._folder).as_posix())

    def _embed(self, file: Path) -> str:
        """Return a data URL, or a link if the page has no time or room, or the file is damaged."""
        try:
            content = file.read_bytes()
            key = crc32(content) << 32 | len(content)
            url = self._kept.get(key) or self._compressed.get(key)
            if url is None and time.thread_time() <= self._deadline_s:
                url = _data_url(content, file.suffix)
        except UNREADABLE:
            return self._link(file)
        size = sum(map(len, self._compressed.values()))
        if url is None or size + len(url) > EMBEDDED_BYTES:
            return self._link(file)
        self._compressed[key] = url
        return url


def _size(picture: Path) -> list[int]:
    """Return width and height, which keep the page from jumping while it loads."""
    from PIL import Image  # not in the light base

    with suppress(*UNREADABLE), Image.open(picture) as image:
        return [image.width, image.height]
    return []


def _data_url(content: bytes, suffix: str) -> str:
    """Return a sound as MP3, or a picture as JPEG."""
    if suffix == ".wav":
        wave, rate_hz = soundfile.read(io.BytesIO(content), dtype="float32")
        return sound_url(wave, rate_hz)
    compressed = io.BytesIO()
    from PIL import Image

    picture = Image.open(io.BytesIO(content)).convert("RGB")
    picture.save(compressed, "JPEG", quality=JPEG_QUALITY, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(compressed.getvalue()).decode()}"


def sound_url(wave: np.ndarray, rate_hz: int) -> str:
    """Return a wave, float32 [samples] in [-1, 1], as a data URL of an MP3 file."""
    compressed = io.BytesIO()
    form = {"format": "MP3", "subtype": "MPEG_LAYER_III", "compression_level": 0.7}
    soundfile.write(compressed, wave, rate_hz, **form)
    return f"data:audio/mpeg;base64,{base64.b64encode(compressed.getvalue()).decode()}"


def read_scores(folder: Path) -> list[list[str]]:
    """Return name and table of the newest SHOWN_SCORES evaluations, the newest checkpoint first."""
    found = (folder / EVALUATION_FOLDER).glob(f"*/{SCORES}")
    files = sorted(found, key=lambda file: step_of(file.parent), reverse=True)
    return [
        [file.parent.name, file.read_text(encoding="utf-8", errors="replace")]
        for file in files[:SHOWN_SCORES]
    ]
