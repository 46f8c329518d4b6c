"""Further pages besides the page of a run: index.html of all runs, and parts of other pages.

No TensorFlow.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from myxtts.base.files import write_whole
from myxtts.report.metrics import read_last_report, validation_scores

TEMPLATE = Path(__file__).with_name("page.html")
OVERVIEW_RELOAD_S = 60.0
CURVES = ("loss", "validation_loss", "steps_per_s", "accelerator_utilisation")


def number(value: float) -> str:
    """Return a value for people: `0.8342`, `12,300`, `2e-05`."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def document(kind: str, page: Mapping[str, Any], reload_s: float, stale_s: float = 0.0) -> bytes:
    """Return a whole page, whose script draws its data as a run, jobs or overview.

    It reloads itself after `reload_s`, and says after `stale_s` (0: never) that there is no news.
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
    """Return a mark at each step after `after`, up to `step`, at which jobs averaged weights."""
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
