"""Further pages besides that of a run: index.html of all runs, and report.html of independent jobs.

No TensorFlow.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from myxtts.files import write_whole
from myxtts.report.answers import number
from myxtts.report.history import History
from myxtts.report.metrics import read_last_report, validation_scores

TEMPLATE = Path(__file__).with_name("page.html")
OVERVIEW_RELOAD_S = 60.0
JOBS_REFRESH_S = 10.0
CURVES = ("loss", "validation_loss", "steps_per_s", "accelerator_utilisation")


def document(
    kind: str, page: Mapping[str, Any], *, written_s: float, reload_s: float, stale_s: float = 0.0
) -> bytes:
    """Return a whole page.

    Args:
        kind: run, jobs or overview: what the script of page.html draws.
        page: what that is drawn from, for JSON.
        written_s: time of the page, in seconds since 1970.
        reload_s: age at which an open page reloads itself.
        stale_s: age from which the page says that there is no news; 0 for never.
    """
    times = {"kind": kind, "written": round(written_s), "reload": reload_s, "stale": stale_s}
    # A text of the user may have `</script>` or `<!--`, which would end the JSON.
    content = json.dumps({**times, **page}, separators=(",", ":")).replace("<", "\\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace("PAGE_DATA", content, 1).encode()


def read_facts(folder: Path) -> dict[str, Any]:
    """Return run.json of a run or a worker; empty if there is none that can be read."""
    try:
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def sync_marks(every: int, step: int) -> list[tuple[int, str]]:
    """Return a mark at each step up to `step` at which jobs averaged their weights.

    None are returned if `every` is 0.
    """
    if not every:
        return []
    return [(at, "weights averaged") for at in range(every, step + 1, every)]


def write_overview(runs: Path) -> Path:
    """Write index.html of a folder of runs from the ends of their files; return its path.

    Runs that are trained at the same time may call it at the same time; the last one wins.
    """
    newest_first = sorted(_runs(runs), key=lambda run: -run[1])
    rows = []
    for folder, newest_s in newest_first:
        with suppress(OSError):
            # Folders may be another user's.
            rows.append({**_row(folder), "name": folder.relative_to(runs).as_posix()})
            rows[-1]["newest"] = newest_s
    page = {"name": f"Runs in {runs.resolve().name}", "runs": rows}
    content = document("overview", page, written_s=time.time(), reload_s=OVERVIEW_RELOAD_S)
    write_whole(runs / "index.html", content)
    return runs / "index.html"


def _runs(runs: Path) -> Iterator[tuple[Path, float]]:
    """Yield the folder of each run or job, and the time of its newest report."""
    for folder in runs.iterdir():
        metrics = folder / "metrics.jsonl"
        with suppress(OSError):
            # The folder may be removed since, or another user's.
            if metrics.exists():
                yield folder, metrics.stat().st_mtime
            elif (folder / "launcher.json").exists():
                yield from _runs(folder)


def _row(folder: Path) -> dict[str, Any]:
    validation = read_last_report(folder / "metrics.jsonl", "validation_loss")
    return {
        "report": read_last_report(folder / "metrics.jsonl"),
        "validation_loss": validation.get("validation_loss"),
        "scores": validation_scores(validation),
        "facts": read_facts(folder),
    }


class JobsPage:
    """The page of several jobs, from their metrics and the launcher's state, launcher.json.

    Args:
        folder: that contains the folders of the jobs.
    """

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
        """Write report.html from what the jobs have reported so far, and index.html of all runs.

        Returns:
            The path of report.html.
        """
        self._written_s = time.monotonic()
        folder = self._folder
        state = json.loads((folder / "launcher.json").read_text(encoding="utf-8"))
        names = [name for name in state["processes"] if name != "merge"]
        for name in names:
            self._histories.setdefault(name, History(folder / name / "metrics.jsonl")).update()
        histories = {name: self._histories[name] for name in names}
        marks = merge_marks(state, max((history.step for history in histories.values()), default=0))
        page = {
            "name": folder.name,
            "stage": state["stage"],
            "jobs": {name: _job(state, name, history) for name, history in histories.items()},
            "marks": marks,
            "merge": _merge_text(state),
        }
        content = document("jobs", page, written_s=time.time(), reload_s=JOBS_REFRESH_S)
        write_whole(folder / "report.html", content)
        with suppress(OSError):
            # The folder of all runs may be another user's.
            write_overview(folder.parent)
        return folder / "report.html"


def merge_marks(state: Mapping[str, Any], step: int) -> list[tuple[int, str]]:
    """Return a mark at each step up to now at which the jobs averaged their weights, and at the
    final merge.
    """
    every = state["immutable"]["sync_every"]
    total = state["total_steps"]
    # The warm start is one job, which averages no weights.
    marks = [
        mark for mark in sync_marks(every, step) if mark[0] > state["immutable"]["warmstart_steps"]
    ]
    if every and step >= total and total % every:
        # The last sync is at the end, whatever the period is.
        marks.append((total, "weights averaged"))
    if merge := state.get("merge"):
        names = ", ".join(merge["job_steps"])
        marks.append((max(merge["job_steps"].values()), f"merge of {names}"))
    return marks


def _merge_text(state: Mapping[str, Any]) -> str:
    every = state["immutable"]["sync_every"]
    merge = state.get("merge")
    sync = f"The jobs average their weights every {number(every)} steps. " if every else ""
    if merge is None:
        return f"{sync}They are merged when all have ended."
    steps = ", ".join(f"{name} (step {number(step)})" for name, step in merge["job_steps"].items())
    if merge["exit_code"]:
        return f"{sync}Merged: {steps}; it was worse than the best job, whose weights were kept."
    return f"{sync}Merged: {steps}."


def _job(state: Mapping[str, Any], name: str, history: History) -> dict[str, Any]:
    """Return what the page shows of a job, or of the warm start of all jobs."""
    jobs = [name for name in state["processes"] if name not in ("merge", "warmstart")]
    total = state["immutable"]["warmstart_steps"]
    gpu = None
    if name in jobs:
        total = state["total_steps"]
        gpu = state["immutable"]["gpus"][jobs.index(name)]
    return {
        "process": state["processes"][name],
        "step": history.step,
        "total": total,
        "gpu": gpu,
        "report": history.newest,
        "series": {key: history.points(key) for key in CURVES},
    }
