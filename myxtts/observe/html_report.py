"""report.html: curves, samples and settings of a run on one page that needs no server."""

import base64
import html
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np

from myxtts.files import write_whole
from myxtts.observe.metrics import read_metrics
from myxtts.observe.plots import curves, png_bytes
from myxtts.observe.report import console_line

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{name}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
img {{ max-width: 100%; }}
figure {{ margin: 2rem 0; }}
audio {{ display: block; height: 2.2rem; }}
th {{ text-align: left; font-weight: normal; padding-right: 1rem; }}
pre {{ overflow-x: auto; background: #f4f4f4; padding: 1rem; }}
</style>
<h1>{name}</h1>
<p>Step {step}.</p>
{newest}
<figure><img alt="losses by step" src="data:image/png;base64,{picture}"></figure>
{samples}
<h2>Settings</h2>
<pre>{config}</pre>
</html>
"""
SAMPLE = """<figure>
<table>
{sounds}
</table>
<img alt="{name}" src="{picture}">
</figure>"""
SOUND = '<tr><th>{label}</th><td><audio controls preload="none" src="{file}"></audio></td></tr>'
LABELS = {
    "recording": "recording",
    "griffin-lim": "copy synthesis, Griffin-Lim",
    "vocoder": "copy synthesis, vocoder",
    "synthesized-griffin-lim": "synthesized, Griffin-Lim",
    "": "synthesized",
}
"""What the sounds of a sample are, by the part of their name between NAME and .wav, in the order of the page."""


def write_report(folder: Path) -> Path:
    """Write report.html of a run from its metrics, its newest samples and its settings; return its path."""
    lines = read_metrics(folder / "metrics.jsonl")
    page = PAGE.format(
        name=html.escape(folder.name),
        step=lines[-1]["step"] if lines else 0,
        newest="".join(f"<p><code>{html.escape(line)}</code></p>" for line in _newest(lines)),
        picture=base64.b64encode(png_bytes(_losses(lines))).decode(),
        samples="\n".join(_samples(folder)),
        config=html.escape((folder / "config.yaml").read_text(encoding="utf-8")),
    )
    write_whole(folder / "report.html", page.encode())
    return folder / "report.html"


def _newest(lines: list[dict]) -> Iterator[str]:
    """Yield the newest line of the console; none for a run before its first report, or of an older version."""
    reports = [line for line in lines if "pause_s" in line and line.get("loss") is not None]
    if reports:
        yield console_line(reports[-1]["step"], reports[-1])


def _losses(lines: list[dict]) -> np.ndarray:
    series = {}
    for name in ("loss", "validation_loss"):
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        if points:
            series[name.replace("_", " ")] = np.array(points)
    return curves(series)


def _samples(folder: Path) -> list[str]:
    newest = max((folder / "samples").glob("step-*"), key=lambda path: (len(path.name), path.name), default=None)
    if newest is None:
        return []
    texts = [f"<pre>{html.escape(path.read_text(encoding='utf-8'))}</pre>" for path in newest.glob("*.txt")]
    if any(picture.with_suffix(".wav").exists() for picture in newest.glob("*.png")):
        texts.append("<p>Each sample is synthesized with another utterance of the speaker as its reference.</p>")
    figures = [_figure(folder, picture) for picture in sorted(newest.glob("*.png"))]
    return [f"<h2>Step {int(newest.name.removeprefix('step-'))}</h2>", *texts, *figures]


def _figure(folder: Path, picture: Path) -> str:
    """Return a sample's sounds, NAME.wav and NAME.KIND.wav, above its picture, NAME.png."""
    files = {label: picture.with_name(sound_file(picture.stem, kind)) for kind, label in LABELS.items()}
    sounds = (SOUND.format(label=label, file=_link(folder, file)) for label, file in files.items() if file.exists())
    return SAMPLE.format(sounds="\n".join(sounds), name=html.escape(picture.stem), picture=_link(folder, picture))


def sound_file(name: str, kind: str) -> str:
    """Return the name of a sample's sound of a kind, which LABELS has: NAME.KIND.wav, or NAME.wav."""
    return f"{name}.{kind}.wav" if kind else f"{name}.wav"


def _link(folder: Path, file: Path) -> str:
    return quote(file.relative_to(folder).as_posix())
