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
audio {{ display: block; margin: .5rem 0; }}
pre {{ overflow-x: auto; background: #f4f4f4; padding: 1rem; }}
</style>
<h1>{name}</h1>
<p>Step {step}. Each sample is synthesized with another utterance of the speaker as its reference.</p>
{newest}
<figure><img alt="losses by step" src="data:image/png;base64,{picture}"></figure>
{samples}
<h2>Settings</h2>
<pre>{config}</pre>
</html>
"""
SOUND = '<audio controls src="{sound}"></audio>'
SAMPLE = """<figure>
{sound}
<img alt="{name}" src="{picture}">
</figure>"""


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
    names = {path.with_suffix("") for kind in ("*.png", "*.wav") for path in newest.glob(kind)}
    figures = [_figure(folder, name) for name in sorted(names)]
    return [f"<h2>Step {int(newest.name.removeprefix('step-'))}</h2>", *texts, *figures]


def _figure(folder: Path, name: Path) -> str:
    """Return the picture of a sample, below its sound if there is one."""
    path = name.relative_to(folder).as_posix()
    sound = SOUND.format(sound=quote(f"{path}.wav")) if Path(f"{name}.wav").exists() else ""
    return SAMPLE.format(sound=sound, name=html.escape(name.name), picture=quote(f"{path}.png"))
