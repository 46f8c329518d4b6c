"""Recordings and samples of each step for the page, and the scores of evaluations.

Sounds and pictures of the newest step are a part of the page, as MP3 and JPEG. So are small
pictures of other steps, as long as there is room; their sounds and whole pictures are linked.
No TensorFlow.
"""

import base64
import io
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

import soundfile
from PIL import Image

LABELS = {
    "recording": "recording",
    "griffin-lim": "copy synthesis, Griffin-Lim",
    "vocoder": "copy synthesis, vocoder",
    "synthesized-griffin-lim": "synthesized, Griffin-Lim",
    "": "synthesized",
}
"""What the sounds of a sample are, by the part of their name between NAME and .wav, in the order of
the page.
"""

# Sounds and pictures within the page take 3.5 MB at most, so that it can be sent by mail.
EMBEDDED_BYTES = 3_500_000
JPEG_QUALITY = 80
# Pictures of older steps are 300 pixels wide, so that several stand side by side.
SMALL_WIDTH = 300
SMALL_QUALITY = 40
# The page has the newest 100 steps and tables: each takes 3 to 30 kB, and nobody reads thousands.
SHOWN_STEPS = 100
SHOWN_SCORES = 100
EVALUATION_FOLDER = "evaluation"
SCORES = "scores.md"
# PIL raises all of them for pictures, the last one for damaged PNG.
UNREADABLE = (OSError, ValueError, SyntaxError)


def sound_file(name: str, kind: str) -> str:
    """Return the name of a sample's sound of a kind in LABELS: NAME.KIND.wav, or NAME.wav."""
    return f"{name}.{kind}.wav" if kind else f"{name}.wav"


def step_of(folder: Path) -> int:
    """Return the step of a folder `step-000500`; 0 for other names, such as that of a copy."""
    digits = folder.name.removeprefix("step-")
    return int(digits) if digits.isdecimal() else 0


class Media:
    """URLs of sounds and pictures: their compressed content, or a link to the file.

    Files that were compressed once are kept, by their content: recordings are the same at all
    steps.

    Args:
        folder: of the page.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._compressed: dict[int, str] = {}
        self._used: set[int] = set()
        self._deadline_s = 0.0
        self._left = 0

    def begin(self, budget_s: float) -> None:
        """Begin a page that may compress for so long; the files beyond are linked until the next.

        The time is that of this thread on a processor, which other programs do not change.
        """
        self._deadline_s = time.thread_time() + budget_s
        self._left = EMBEDDED_BYTES
        self._compressed = {key: url for key, url in self._compressed.items() if key in self._used}
        self._used.clear()

    @property
    def has_time(self) -> bool:
        """Whether more files may be compressed for this page."""
        return time.thread_time() <= self._deadline_s

    def reserve(self, size: int) -> bool:
        """Reserve room of the page for a text with embedded files; return whether there is any."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def link(self, file: Path) -> str:
        return quote(file.relative_to(self._folder).as_posix())

    def embed(self, file: Path) -> str:
        """Return a data URL, or a link if the page has no time or room, or the file is damaged."""
        try:
            content = file.read_bytes()
            key = crc32(content) << 32 | len(content)
            if key not in self._compressed:
                if not self.has_time:
                    return self.link(file)
                self._compressed[key] = _data_url(content, file.suffix)
        except (soundfile.SoundFileError, *UNREADABLE):
            return self.link(file)
        self._used.add(key)
        url = self._compressed[key]
        return url if self.reserve(len(url)) else self.link(file)

    def small(self, picture: Path) -> str:
        """Return the data URL of a small copy of a picture, or a link if it cannot be read."""
        try:
            return _data_url(picture.read_bytes(), picture.suffix, SMALL_WIDTH, SMALL_QUALITY)
        except UNREADABLE:
            return self.link(picture)


def _data_url(
    content: bytes, suffix: str, width: int | None = None, quality: int = JPEG_QUALITY
) -> str:
    """Return a sound as MP3, or a picture as JPEG of at most a width."""
    compressed = io.BytesIO()
    if suffix == ".wav":
        wave, rate_hz = soundfile.read(io.BytesIO(content), dtype="float32")
        soundfile.write(
            compressed, wave, rate_hz, format="MP3", subtype="MPEG_LAYER_III", compression_level=0.7
        )
        kind = "audio/mpeg"
    else:
        picture = Image.open(io.BytesIO(content)).convert("RGB")
        if width is not None:
            picture.thumbnail((width, picture.height), Image.Resampling.LANCZOS)
        picture.save(compressed, "JPEG", quality=quality, optimize=True)
        kind = "image/jpeg"
    return f"data:{kind};base64,{base64.b64encode(compressed.getvalue()).decode()}"


class Samples:
    """The samples of a run by step. Those of steps before the newest do not change."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._media = Media(folder)
        # Small pictures of a step are compressed once, when there is time.
        self._small: dict[str, dict[str, Any]] = {}

    def read(self, budget_s: float) -> dict[str, Any]:
        """Return the newest SHOWN_STEPS `steps` with samples, and how many `older` ones there are.

        Args:
            budget_s: longest processor time to compress new files.
        """
        folders = filter(step_of, (self._folder / "samples").glob("step-*"))
        newest_first = sorted(folders, key=step_of, reverse=True)
        self._media.begin(budget_s)
        names = {folder.name for folder in newest_first[1:SHOWN_STEPS]}
        self._small = {name: step for name, step in self._small.items() if name in names}
        steps: list[dict[str, Any]] = []
        with suppress(FileNotFoundError):
            # A repeated step replaces its samples.
            for folder in newest_first[:SHOWN_STEPS]:
                steps.append(self._older(folder) if steps else self._step(folder, "whole"))
        return {"steps": steps, "older": max(len(newest_first) - SHOWN_STEPS, 0)}

    def _older(self, folder: Path) -> dict[str, Any]:
        """Return a step with small pictures, or with links for want of time or room."""
        if folder.name not in self._small and self._media.has_time:
            self._small[folder.name] = self._step(folder, "small")
        small = self._small.get(folder.name)
        if small is not None and self._media.reserve(len(json.dumps(small))):
            return small
        return self._step(folder, "linked")

    def _step(self, folder: Path, form: str) -> dict[str, Any]:
        """Return the samples of a step; the form of their pictures is whole, small or linked."""
        names = sorted(path.name for path in folder.iterdir())
        texts = [
            (folder / name).read_text(encoding="utf-8", errors="replace")
            for name in names
            if name.endswith(".txt")
        ]
        pictures = [folder / name for name in names if name.endswith(".png")]
        is_synthesized = any(picture.with_suffix(".wav").name in names for picture in pictures)
        return {
            "step": step_of(folder),
            "folder": folder.name,
            "is_whole": form == "whole",
            "texts": texts,
            "is_synthesized": is_synthesized,
            "samples": [self._sample(picture, names, form) for picture in pictures],
        }

    def _sample(self, picture: Path, names: list[str], form: str) -> dict[str, Any]:
        media = self._media
        url_of = media.embed if form == "whole" else media.link
        image = media.small(picture) if form == "small" else url_of(picture)
        whole = media.link(picture) if form == "small" else ""
        sounds = [
            [label, url_of(picture.with_name(sound_file(picture.stem, kind)))]
            for kind, label in LABELS.items()
            if sound_file(picture.stem, kind) in names
        ]
        return {
            "name": picture.stem,
            "sounds": sounds,
            "image": image,
            "whole": whole,
            "size": _size(picture),
        }


def _size(picture: Path) -> list[int]:
    """Return width and height, which keep the page from jumping while it loads."""
    try:
        with Image.open(picture) as image:
            return [image.width, image.height]
    except UNREADABLE:
        return []


def read_scores(folder: Path) -> list[list[str]]:
    """Return name and table of the newest SHOWN_SCORES evaluations, the newest checkpoint first."""
    files = sorted(
        (folder / EVALUATION_FOLDER).glob(f"*/{SCORES}"), key=lambda file: step_of(file.parent)
    )
    return [
        [file.parent.name, file.read_text(encoding="utf-8", errors="replace")]
        for file in files[: -SHOWN_SCORES - 1 : -1]
    ]
