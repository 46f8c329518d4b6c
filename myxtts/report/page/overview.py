"""runs/index.html: all runs of a folder beside each other. No TensorFlow."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from myxtts.files import write_whole
from myxtts.report.metrics_reader import read_last_report, validation_scores
from myxtts.report.page.charts import number
from myxtts.report.page.columns import read_facts
from myxtts.report.page.style import document

RELOAD_S = 60
COLUMNS = (
    "run",
    "task",
    "step",
    "loss",
    "validation loss",
    "score",
    "steps/s",
    "audio s/s",
    "busy",
    "placement",
)


def write_overview(runs: Path) -> Path:
    """Write index.html of a folder of runs from the ends of their files; return its path.

    Runs that are trained at the same time may call it at the same time; the last one wins.
    """
    now_s = time.time()
    newest_first = sorted(_runs(runs), key=lambda found: -found[1])
    rows = ""
    for folder, newest_s in newest_first:
        with suppress(
            OSError, AttributeError, KeyError, TypeError, ValueError
        ):  # another user's, or another program's
            rows += _row(folder, folder.relative_to(runs), newest_s, now_s)
    head = "".join(f'<th scope="col">{name}</th>' for name in (*COLUMNS, "newest report"))
    body = (
        f"<h1>Runs in {escape(runs.resolve().name)}</h1><p class='small'><span id='age'></span>;"
        " the newest first.</p>"
        f'<div class="scroll"><table class="runs"><tr>{head}{rows}</table></div>'
    )
    write_whole(
        runs / "index.html",
        document(f"{runs.resolve().name}: runs", body, now_s, RELOAD_S).encode(),
    )
    return runs / "index.html"


def _runs(runs: Path) -> Iterator[tuple[Path, float]]:
    """Yield the folder of each run and the time of its newest report; of jobs, those of
    each job.
    """
    for folder in runs.iterdir():
        metrics = folder / "metrics.jsonl"
        with suppress(OSError):  # removed since, or another user's
            if metrics.exists():
                yield folder, metrics.stat().st_mtime
            elif (folder / "launcher.json").exists():
                yield from _runs(folder)


def _row(folder: Path, name: Path, newest_s: float, now_s: float) -> str:
    report, facts = read_last_report(folder / "metrics.jsonl"), read_facts(folder)
    validation = read_last_report(folder / "metrics.jsonl", "validation_loss")
    total = f" of {facts['total_steps']:,}" if facts.get("total_steps") else ""
    cells = {
        "task": escape(facts.get("task", "")),
        "step": f"{report['step']:,}{total}" if report else "",
        "loss": _figure(report, "loss"),
        "validation loss": _figure(validation, "validation_loss"),
        "score": escape(", ".join(validation_scores(validation))),
        "steps/s": _figure(report, "steps_per_s"),
        "audio s/s": _figure(report, "audio_seconds_per_s"),
        "busy": (
            f"{100 * report['accelerator_utilisation']:.0f} %"
            if "accelerator_utilisation" in report
            else ""
        ),
        "placement": escape(facts.get("placement", "")),
        "newest": (
            time.strftime("%Y-%m-%d %H:%M", time.localtime(newest_s))
            + " now" * (now_s - newest_s < RELOAD_S)
        ),
    }
    link = f'<a href="{quote(f"{name.as_posix()}/report.html")}">{escape(name.as_posix())}</a>'
    return f"<tr><td>{link}</td>" + "".join(f"<td>{cell}</td>" for cell in cells.values())


def _figure(report: Mapping[str, Any], name: str) -> str:
    return "" if report.get(name) is None else number(report[name])
