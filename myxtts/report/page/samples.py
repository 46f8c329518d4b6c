"""Recordings and samples side by side, for each step of which there are samples, and scores. No
TensorFlow.

Sounds and pictures of the newest step are a part of the page, as MP3 and JPEG. So are small
pictures of other steps, as long as there is room; their sounds and whole pictures are linked.
"""

import base64
import io
import time
from collections.abc import Callable, Iterator, Sequence
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
"""What the sounds of a sample are, by the part of their name between NAME and .wav, in the order of
the page.
"""

EMBEDDED_BYTES = 3_500_000  # of sounds and pictures within the page
JPEG_QUALITY = 80
SMALL_WIDTH, SMALL_QUALITY = 300, 40  # of the pictures of other steps
SHOWN_STEPS = 100  # of samples; a page of thousands, each of 4 to 30 kB, is of no use to anybody
EVALUATION_FOLDER, SCORES = (
    "evaluation",
    "scores.md",
)  # folder of a run, and the table in the folder of a checkpoint
SHOWN_SCORES = 100  # of 3 kB each


def sound_file(name: str, kind: str) -> str:
    """Return the name of a sample's sound of a kind, which LABELS has: NAME.KIND.wav, or
    NAME.wav.
    """
    return f"{name}.{kind}.wav" if kind else f"{name}.wav"


UNREADABLE = (
    OSError,
    ValueError,
    SyntaxError,
)  # what PIL raises for pictures, the last one for damaged PNG


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
        self._deadline_s = self._left = 0.0

    def begin(self, budget_s: float) -> None:
        """Begin a page that may compress for so long; the files beyond are linked until the next
        page.

        The time is that of this thread on a processor, which other programs do not change.
        """
        self._deadline_s, self._left = time.thread_time() + budget_s, EMBEDDED_BYTES
        self._compressed = {key: url for key, url in self._compressed.items() if key in self._used}
        self._used.clear()

    @property
    def has_time(self) -> bool:
        """Whether more files may be compressed for this page."""
        return time.thread_time() <= self._deadline_s

    def take(self, size: int) -> bool:
        """Take room of the page for text with embedded files; return whether there is so much."""
        has_room = size <= self._left
        self._left -= size * has_room
        return has_room

    def link(self, file: Path) -> str:
        return quote(file.relative_to(self._folder).as_posix())

    def embed(self, file: Path) -> str:
        """Return a data URL, or a link where neither time nor room is left, or the file cannot be
        read.
        """
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
        return url if self.take(len(url)) else self.link(file)

    def small(self, picture: Path) -> str:
        """Return the data URL of a small copy of a picture, or a link if it cannot be read."""
        try:
            return _data_url(picture.read_bytes(), picture.suffix, SMALL_WIDTH, SMALL_QUALITY)
        except UNREADABLE:
            return self.link(picture)


def _data_url(
    content: bytes, suffix: str, width: int | None = None, quality: int = JPEG_QUALITY
) -> str:
    """Return a sound as MP3, or a picture as JPEG, of at most a width."""
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
    """The section of samples. Steps other than the newest do not change, and are written once, when
    there is time.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._media = Media(folder)
        self._linked: dict[str, str] = {}
        self._small: dict[str, str] = {}

    def section(self, budget_s: float) -> str:
        """Return the samples of the newest SHOWN_STEPS steps, the newest first; empty if there are
        none.

        Args:
            budget_s: longest processor time to compress new files.
        """
        steps = sorted(
            filter(_step_of, (self._folder / "samples").glob("step-*")), key=_step_of, reverse=True
        )
        if not steps:
            return ""
        self._media.begin(budget_s)
        newest, *others = steps[:SHOWN_STEPS]
        shown = {path.name for path in others}
        for drawn in (self._linked, self._small):
            for name in drawn.keys() - shown:
                del drawn[name]
        parts = []
        with suppress(FileNotFoundError):  # samples of a repeated step take the place of others
            parts.append(self._step(newest, self._whole))
            parts += map(self._other_step, others)
        if older := len(steps) - len(others) - 1:
            parts.append(f"<p>Older steps with samples: {older:,}, in <code>samples/</code>.</p>")
        return f'<section><h2 id="samples">Samples</h2>{"".join(parts)}</section>'

    def _other_step(self, folder: Path) -> str:
        """Return the samples of a step with small pictures, or with links where time or room is
        lacking.
        """
        if folder.name not in self._small and self._media.has_time:
            self._small[folder.name] = self._step(folder, self._overview)
        small = self._small.get(folder.name, "")
        if small and self._media.take(len(small)):
            return small
        if folder.name not in self._linked:
            self._linked[folder.name] = self._step(folder, self._links)
        return self._linked[folder.name]

    def _step(self, folder: Path, draw: Callable[[Path, Sequence[str], int], str]) -> str:
        """Return the samples of a step.

        Args:
            draw: (picture, files of the step, step) -> a sample.
        """
        step = _step_of(folder)
        names = sorted(path.name for path in folder.iterdir())
        texts = [path for path in names if path.endswith(".txt")]
        body = [
            f"<pre>{escape((folder / name).read_text(encoding='utf-8', errors='replace'))}</pre>"
            for name in texts
        ]
        pictures = [folder / name for name in names if name.endswith(".png")]
        if any(picture.with_suffix(".wav").name in names for picture in pictures):
            body.append(
                "<p>Each sample is synthesized with another utterance of the speaker as its"
                " reference.</p>"
            )
        drawn = "".join(draw(picture, names, step) for picture in pictures)
        body.append(f'<div class="thumbs">{drawn}</div>' if draw == self._overview else drawn)
        state = " open" if draw == self._whole else ""
        return (
            f'<details id="{folder.name}"{state}><summary>Step'
            f" {step:,}</summary>{''.join(body)}</details>"
        )

    def _whole(self, picture: Path, names: Sequence[str], step: int) -> str:
        return _sample(
            picture,
            names,
            step,
            self._media.embed,
            _image(picture, step, self._media.embed(picture)),
        )

    def _links(self, picture: Path, names: Sequence[str], step: int) -> str:
        return _sample(
            picture, names, step, self._media.link, _image(picture, step, self._media.link(picture))
        )

    def _overview(self, picture: Path, names: Sequence[str], step: int) -> str:
        image = _image(picture, step, self._media.small(picture))
        whole = f'<a href="{self._media.link(picture)}">{image}</a>'
        return _sample(picture, names, step, self._media.link, whole)


def _step_of(folder: Path) -> int:
    """Return the step of a folder `step-000500`; 0 for other names, such as that of a copy."""
    number = folder.name.removeprefix("step-")
    return int(number) if number.isdecimal() else 0


def _sample(
    picture: Path, names: Sequence[str], step: int, sound_url: Callable[[Path], str], image: str
) -> str:
    """Return a sample's sounds, NAME.wav and NAME.KIND.wav, beside each other, above the image of
    its picture.
    """
    name = picture.stem
    sounds = "".join(
        f"<div><span>{label}</span>"
        f'<audio controls preload="none" aria-label="{escape(f"{name}, step {step}, {label}")}" '
        f'src="{sound_url(picture.with_name(sound_file(name, kind)))}"></audio></div>'
        for kind, label in LABELS.items()
        if sound_file(name, kind) in names
    )
    return (
        f'<figure class="sample"><figcaption>{escape(name)}</figcaption><div'
        f' class="sounds">{sounds}</div>{image}</figure>'
    )


def _image(picture: Path, step: int, url: str) -> str:
    what = f"spectrograms, and alignment or probabilities, of {picture.stem} at step {step}"
    return f'<img alt="{escape(what)}" loading="lazy" {_size(picture)} src="{url}">'


def _size(picture: Path) -> str:
    """Return the attributes of a picture's size, which keep the page from jumping while it
    loads.
    """
    try:
        with Image.open(picture) as image:
            return f'width="{image.width}" height="{image.height}"'
    except UNREADABLE:
        return ""


def scores(folder: Path) -> str:
    """Return the newest SHOWN_SCORES tables of evaluations, the newest checkpoint first; empty if
    there are none.
    """
    files = sorted(
        (folder / EVALUATION_FOLDER).glob(f"*/{SCORES}"), key=lambda file: _step_of(file.parent)
    )
    parts = [
        f"<details{' open' * (number == 0)}><summary>{escape(file.parent.name)}</summary>"
        f"{''.join(_markdown(file.read_text(encoding='utf-8', errors='replace')))}</details>"
        for number, file in enumerate(files[: -SHOWN_SCORES - 1 : -1])
    ]
    return f'<section><h2 id="scores">Scores</h2>{"".join(parts)}</section>' if parts else ""


def _markdown(text: str) -> Iterator[str]:
    """Yield a table of `evaluate` as HTML, and the notes below it."""
    lines = text.splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    rows = [row for row in rows if set("".join(row)) - set("-: ")]
    if rows:
        head, *body = rows
        yield '<div class="scroll"><table><tr>' + "".join(
            f'<th scope="col">{escape(cell)}</th>' for cell in head
        )
        for row in body:
            yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row)
        yield "</table></div>"
    if notes := [line.removeprefix("- ") for line in lines if line.startswith("- ")]:
        yield "<ul>" + "".join(f"<li>{escape(note)}" for note in notes) + "</ul>"
