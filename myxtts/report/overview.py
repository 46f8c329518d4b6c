"""Further pages besides that of a run: index.html of all runs, and report.html of independent jobs.

No TensorFlow.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from myxtts.base.files import write_whole
from myxtts.report.metrics import History, read_last_report, validation_scores

TEMPLATE = Path(__file__).with_name("page.html")
OVERVIEW_RELOAD_S = 60.0
JOBS_REFRESH_S = 10.0
CURVES = ("loss", "validation_loss", "steps_per_s", "accelerator_utilisation")


def number(value: float) -> str:
    """Return a value for people: `0.8342`, `12,300`, `2e-05`."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def document(kind: str, page: Mapping[str, Any], reload_s: float, stale_s: float = 0.0) -> bytes:
    """Return a whole page: what the script of page.html draws as a run, jobs or overview.

    An open page reloads itself at the age `reload_s`, and says that there is no news from the age
    `stale_s` on (0 for never).
    """
    times = {"kind": kind, "written": round(time.time()), "reload": reload_s, "stale": stale_s}
    # A text of the user may have `</script>` or `<!--`, which would end the JSON.
    content = json.dumps({**times, **page}, separators=(",", ":")).replace("<", "\\u003c")
    return TEMPLATE.read_text(encoding="utf-8").replace("PAGE_DATA", content, 1).encode()


def read_facts(folder: Path) -> dict[str, Any]:
    """Return run.json of a run or a worker; empty if it cannot be read."""
    try:
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def sync_marks(every: int, step: int, after: int = 0) -> list[tuple[int, str]]:
    """Return a mark at each step up to `step`, but `after` one, at which jobs averaged weights."""
    steps = range(every, step + 1, every) if every else ()
    return [(at, "weights averaged") for at in steps if at > after]


def write_overview(runs: Path) -> Path:
    """Write index.html of a folder of runs from the ends of their files; return its path."""
    rows = []
    for folder, newest_s in sorted(_runs(runs), key=lambda run: -run[1]):
        with suppress(OSError):
            # Folders may be another user's.
            validation = read_last_report(folder / "metrics.jsonl", "validation_loss")
            row = {
                "name": folder.relative_to(runs).as_posix(),
                "newest": newest_s,
                "report": read_last_report(folder / "metrics.jsonl"),
                "validation_loss": validation.get("validation_loss"),
                "scores": validation_scores(validation),
                "facts": read_facts(folder),
            }
            rows.append(row)
    page = {"name": f"Runs in {runs.resolve().name}", "runs": rows}
    write_whole(runs / "index.html", document("overview", page, OVERVIEW_RELOAD_S))
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
