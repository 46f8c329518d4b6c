"""The page of all jobs of a launcher."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from myxtts.base.files import write_whole
from myxtts.report.metrics import History
from myxtts.report.overview import CURVES, document, number, sync_marks, write_overview

JOBS_REFRESH_S = 10.0


class JobsPage:
    """The page of several jobs in a folder, from their metrics and the launcher's state."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._histories: dict[str, History] = {}
        self._written_s = -JOBS_REFRESH_S

    def refresh(self) -> None:
        """Write the page if it is old enough; a full disk leaves the previous one."""
        if time.monotonic() - self._written_s >= JOBS_REFRESH_S:
            with suppress(OSError):
                self.write()

    def write(self) -> Path:
        """Write report.html of the jobs, and index.html of all runs; return the former's path."""
        self._written_s = time.monotonic()
        folder = self._folder
        state = json.loads((folder / "launcher.json").read_text(encoding="utf-8"))
        histories = {}
        for name in state["processes"]:
            if name != "merge":
                path = folder / name / "metrics.jsonl"
                histories[name] = self._histories.setdefault(name, History(path))
                histories[name].update()
        step = max((history.step for history in histories.values()), default=0)
        page = {
            "name": folder.name,
            "stage": state["stage"],
            "jobs": {name: _job(state, name, history) for name, history in histories.items()},
            "marks": merge_marks(state, step),
            "merge": merge_text(state.get("merge")),
        }
        write_whole(folder / "report.html", document("jobs", page, JOBS_REFRESH_S))
        with suppress(OSError):
            # The folder of all runs may be another user's.
            write_overview(folder.parent)
        return folder / "report.html"


def merge_marks(state: Mapping[str, Any], step: int) -> list[tuple[int, str]]:
    """Return a mark at each sync of the jobs up to a step, and at their final merge."""
    every = state["immutable"]["sync_every"]
    total = state["total_steps"]
    # The warm start is one job, which averages no weights.
    marks = sync_marks(every, step, after=state["immutable"]["warmstart_steps"])
    if every and step >= total and total % every:
        # The last sync is at the end, whatever the period is.
        marks.append((total, "weights averaged"))
    if merge := state.get("merge"):
        names = ", ".join(merge["job_steps"])
        marks.append((max(merge["job_steps"].values()), f"merge of {names}"))
    return marks


def merge_text(merge: Mapping[str, Any] | None) -> str:
    if merge is None:
        return "The jobs are merged when all have ended."
    steps = ", ".join(f"{name} (step {number(step)})" for name, step in merge["job_steps"].items())
    if merge["exit_code"]:
        return f"Merged: {steps}; it was worse than the best job, whose weights were kept."
    return f"Merged: {steps}."


def _job(state: Mapping[str, Any], name: str, history: History) -> dict[str, Any]:
    """Return what the page shows of a job, or of the warm start of all jobs."""
    jobs = [name for name in state["processes"] if name not in ("merge", "warmstart")]
    total, gpu = state["immutable"]["warmstart_steps"], None
    if name in jobs:
        total, gpu = state["total_steps"], state["immutable"]["gpus"][jobs.index(name)]
    return {
        "process": state["processes"][name],
        "step": history.step,
        "total": total,
        "gpu": gpu,
        "report": history.newest,
        "series": {key: history.points(key) for key in CURVES},
    }
