"""Recordings and samples side by side, for each step of which there are samples, and scores. No TensorFlow.

Sounds and pictures of the newest step are a part of the page, as MP3 and JPEG; those of other steps are linked.
"""

import base64
import io
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from html import escape
from pathlib import Path
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
"""What the sounds of a sample are, by the part of their name between NAME and .wav, in the order of the page."""

EMBEDDED_BYTES = 3_000_000  # of sounds and pictures within the page
JPEG_QUALITY = 80
SCORES = "scores.md"


def sound_file(name: str, kind: str) -> str:
    """Return the name of a sample's sound of a kind, which LABELS has: NAME.KIND.wav, or NAME.wav."""
    return f"{name}.{kind}.wav" if kind else f"{name}.wav"


class Media:
    """URLs of sounds and pictures: their compressed content, or a link to the file.

    Files that were compressed once are kept, by their content: recordings are the same at all steps.

    Args:
        folder: of the page.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._compressed: dict[int, str] = {}
        self._used: set[int] = set()
        self._deadline_s = self._left = 0.0

    def begin(self, budget_s: float) -> None:
        """Begin a page that may take so long to compress; the files beyond are linked until the next page."""
        self._deadline_s, self._left = time.perf_counter() + budget_s, EMBEDDED_BYTES
        self._compressed = {key: url for key, url in self._compressed.items() if key in self._used}
        self._used.clear()

    def link(self, file: Path) -> str:
        return quote(file.relative_to(self._folder).as_posix())

    def embed(self, file: Path) -> str:
        """Return a data URL, or a link where neither time nor room is left, or the file cannot be read."""
        try:
            content = file.read_bytes()
            key = crc32(content) << 32 | len(content)
            if key not in self._compressed:
                if time.perf_counter() > self._deadline_s:
                    return self.link(file)
                self._compressed[key] = _data_url(content, file.suffix)
        except (OSError, soundfile.SoundFileError, ValueError):  # PIL raises OSError; both raise ValueError, too
            return self.link(file)
        self._used.add(key)
        url = self._compressed[key]
        self._left -= len(url)
        return url if self._left >= 0 else self.link(file)


def _data_url(content: bytes, suffix: str) -> str:
    compressed = io.BytesIO()
    if suffix == ".wav":
        wave, rate_hz = soundfile.read(io.BytesIO(content), dtype="float32")
        soundfile.write(compressed, wave, rate_hz, format="MP3", subtype="MPEG_LAYER_III", compression_level=0.7)
        kind = "audio/mpeg"
    else:
        Image.open(io.BytesIO(content)).convert("RGB").save(compressed, "JPEG", quality=JPEG_QUALITY)
        kind = "image/jpeg"
    return f"data:{kind};base64,{base64.b64encode(compressed.getvalue()).decode()}"


class Samples:
    """The section of samples. Steps other than the newest do not change, and are written once."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._media = Media(folder)
        self._written: dict[str, str] = {}

    def section(self, budget_s: float) -> str:
        """Return the samples of all steps, the newest first; empty if there are none.

        Args:
            budget_s: longest time to compress new files.
        """
        folders = (self._folder / "samples").glob("step-*")
        steps = sorted(folders, key=lambda path: (len(path.name), path.name), reverse=True)
        if not steps:
            return ""
        self._media.begin(budget_s)
        newest, *others = steps
        parts = []
        with suppress(FileNotFoundError):  # samples of a repeated step take the place of others
            parts.append(self._step(newest, is_newest=True))
            for folder in others:
                if folder.name not in self._written:
                    self._written[folder.name] = self._step(folder, is_newest=False)
                parts.append(self._written[folder.name])
        return f'<section><h2 id="samples">Samples</h2>{"".join(parts)}</section>'

    def _step(self, folder: Path, is_newest: bool) -> str:
        step = int(folder.name.removeprefix("step-"))
        names = sorted(path.name for path in folder.iterdir())
        texts = [path for path in names if path.endswith(".txt")]
        body = [f"<pre>{escape((folder / name).read_text(encoding='utf-8'))}</pre>" for name in texts]
        pictures = [folder / name for name in names if name.endswith(".png")]
        if any(picture.with_suffix(".wav").name in names for picture in pictures):
            body.append("<p>Each sample is synthesized with another utterance of the speaker as its reference.</p>")
        body += [self._sample(picture, names, step, is_newest) for picture in pictures]
        state = " open" if is_newest else ""
        return f'<details id="{folder.name}"{state}><summary>Step {step:,}</summary>{"".join(body)}</details>'

    def _sample(self, picture: Path, names: Sequence[str], step: int, is_newest: bool) -> str:
        """Return a sample's sounds, NAME.wav and NAME.KIND.wav, beside each other, above its picture, NAME.png."""
        url = self._media.embed if is_newest else self._media.link
        name = picture.stem
        sounds = "".join(
            f"<div><span>{label}</span>"
            f'<audio controls preload="none" aria-label="{escape(f"{name}, step {step}, {label}")}" '
            f'src="{url(picture.with_name(sound_file(name, kind)))}"></audio></div>'
            for kind, label in LABELS.items()
            if sound_file(name, kind) in names
        )
        what = f"spectrograms, and alignment or probabilities, of {name} at step {step}"
        return (
            f'<figure class="sample"><figcaption>{escape(name)}</figcaption><div class="sounds">{sounds}</div>'
            f'<img alt="{escape(what)}" loading="lazy" {_size(picture)} src="{url(picture)}"></figure>'
        )


def _size(picture: Path) -> str:
    """Return the attributes of a picture's size, which keep the page from jumping while it loads."""
    try:
        with Image.open(picture) as image:
            return f'width="{image.width}" height="{image.height}"'
    except (OSError, ValueError):
        return ""


def scores(folder: Path) -> str:
    """Return the tables that `evaluate` left in the run, newest checkpoint first; empty if there are none."""
    files = sorted((folder / "evaluation").glob(f"*/{SCORES}"), reverse=True)
    parts = [
        f"<details{' open' * (number == 0)}><summary>{escape(file.parent.name)}</summary>"
        f"{''.join(_markdown(file.read_text(encoding='utf-8')))}</details>"
        for number, file in enumerate(files)
    ]
    return f'<section><h2 id="scores">Scores</h2>{"".join(parts)}</section>' if parts else ""


def _markdown(text: str) -> Iterator[str]:
    """Yield a table of `evaluate` as HTML, and the notes below it."""
    lines = text.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    rows = [row for row in rows if set("".join(row)) - set("-: ")]
    if rows:
        head, *body = rows
        yield '<div class="scroll"><table><tr>' + "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
        for row in body:
            yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        yield "</table></div>"
    if notes := [line.removeprefix("- ") for line in lines if line.startswith("- ")]:
        yield "<ul>" + "".join(f"<li>{escape(note)}" for note in notes) + "</ul>"
