"""report.html of independent jobs: one column for each job, and their curves together. No
TensorFlow.
"""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from myxtts.clock import format_duration
from myxtts.files import write_whole
from myxtts.report.page.charts import Line, Mark, line_chart, number, sync_marks
from myxtts.report.page.columns import table
from myxtts.report.page.history import History
from myxtts.report.page.overview import write_overview
from myxtts.report.page.style import document

REFRESH_S = 10.0
COLOURS = 7
CURVES = {
    "loss": ("Loss", "", True),
    "validation_loss": ("Validation loss", "", True),
    "steps_per_s": ("Throughput", "steps/s", False),
    "accelerator_utilisation": ("Busy model devices", "fraction", False),
}


class JobsPage:
    """The page of several jobs, from their metrics and the launcher's state, launcher.json.

    Args:
        folder: that contains the folders of the jobs.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._histories: dict[str, History] = {}
        self._written_s = -REFRESH_S

    def refresh(self) -> None:
        """Write the page unless that was done shortly before; a full disk leaves the page
        before.
        """
        if time.monotonic() - self._written_s >= REFRESH_S:
            with suppress(OSError):
                self.write()

    def write(self) -> Path:
        """Write report.html from what the jobs have reported so far, and index.html beside it;
        return its path.
        """
        self._written_s, folder = time.monotonic(), self._folder
        state = json.loads((folder / "launcher.json").read_text(encoding="utf-8"))
        names = [name for name in state["processes"] if name != "merge"]
        for name in names:
            self._histories.setdefault(name, History(folder / name / "metrics.jsonl")).update()
        histories = {name: self._histories[name] for name in names}
        marks = merge_marks(state, max((history.step for history in histories.values()), default=0))
        links = (f'<a href="{quote(name)}/report.html">{escape(name)}</a>' for name in names)
        charts = [
            line_chart(
                title,
                [
                    Line(name, h.points(key), i % COLOURS)
                    for i, (name, h) in enumerate(histories.items())
                ],
                unit=unit,
                log=log,
                marks=marks,
                wide=key == "loss",
            )
            for key, (title, unit, log) in CURVES.items()
        ]
        body = (
            f"<h1>{escape(folder.name)}: independent jobs</h1>"
            f"<p class='small'>Stage {escape(state['stage'])}, <span id='age'></span>. "
            f"<a href='../index.html'>All runs</a></p><p>Pages of the jobs: {', '.join(links)}.</p>"
            f"{table({name: _job(state, name, history) for name, history in histories.items()})}"
            f"{_merge_text(state)}<h2>Training</h2><div class='charts'>{''.join(charts)}</div>"
        )
        write_whole(
            folder / "report.html", document(folder.name, body, time.time(), REFRESH_S).encode()
        )
        with suppress(OSError):  # the folder of all runs may be another user's
            write_overview(folder.parent)
        return folder / "report.html"


def merge_marks(state: Mapping[str, Any], step: int) -> list[Mark]:
    """Return a mark at each step up to now at which the jobs averaged their weights, and at the
    final merge.
    """
    every, begin, total = (
        state["immutable"]["sync_every"],
        state["immutable"]["warmstart_steps"],
        state["total_steps"],
    )
    marks = [mark for mark in sync_marks(every, step) if mark.step > begin]
    if every and step >= total and total % every:  # the last sync
        marks.append(Mark(total, "weights averaged"))
    if merge := state.get("merge"):
        marks.append(
            Mark(max(merge["job_steps"].values()), f"merge of {', '.join(merge['job_steps'])}")
        )
    return marks


def _merge_text(state: Mapping[str, Any]) -> str:
    every, merge = state["immutable"]["sync_every"], state.get("merge")
    sync = f"The jobs average their weights every {number(every)} steps. " if every else ""
    if merge is None:
        return f"<p>{sync}They are merged when all have ended.</p>"
    steps = ", ".join(f"{name} (step {number(step)})" for name, step in merge["job_steps"].items())
    kept = "; it was worse than the best job, whose weights were kept" if merge["exit_code"] else ""
    return f"<p>{sync}Merged: {escape(steps)}{kept}.</p>"


def _job(state: Mapping[str, Any], name: str, history: History) -> dict[str, str]:
    process, report = state["processes"][name], history.newest
    is_job = name in (
        names := [name for name in state["processes"] if name not in ("merge", "warmstart")]
    )
    total = state["total_steps"] if is_job else state["immutable"]["warmstart_steps"]
    cells = {"state": process["state"], "step": f"{history.step:,} of {total:,}"}
    if is_job:
        cells["GPU"] = str(state["immutable"]["gpus"][names.index(name)])
    if "steps_per_s" in report:
        cells |= {"loss": number(report["loss"]) if report["loss"] is not None else "not finite"}
        cells |= {"steps/s": f"{report['steps_per_s']:.2f}"}
        if "accelerator_utilisation" in report:
            cells["model device busy"] = f"{100 * report['accelerator_utilisation']:.1f} %"
        if process["state"] == "running" and "remaining_s" in report:
            cells["time left"] = format_duration(report["remaining_s"])
    validation = history.series.get("validation_loss")
    if validation is not None and validation.newest is not None:
        cells["validation loss"] = number(validation.newest[1])
    return cells | {"restarts": str(process["restarts"])}
