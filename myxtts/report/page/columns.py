"""Replicas and workers beside each other, one column each. No TensorFlow."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from myxtts.clock import Span
from myxtts.report.metrics_reader import read_last_report
from myxtts.report.page.charts import milliseconds
from myxtts.report.page.lanes import fill_levels


def table(columns: Mapping[str, Mapping[str, str]]) -> str:
    """Return a table with a column for each name, and a row for each key of their mappings."""
    names = dict.fromkeys(key for cells in columns.values() for key in cells)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{escape(cells.get(name, '–'))}</td>" for cells in columns.values())
        for name in names
    )
    return f'<div class="scroll"><table><tr><td></td>{head}{rows}</table></div>'


def replicas(facts: Mapping[str, Any], spans: Sequence[Span]) -> str:
    """Return the replicas of this process with the means of their last seconds; empty for a single
    one.
    """
    routes = facts.get("routes", [])
    if len(routes) < 2:
        return ""
    first = facts.get("first_replica", 0)
    columns = {f"replica {first + i}": _replica(route, spans) for i, route in enumerate(routes)}
    return (
        "<h3>Replicas</h3><p>All take the same steps; times are means of the last"
        f" seconds.</p>{table(columns)}"
    )


def _replica(route: Sequence[Any], spans: Sequence[Span]) -> dict[str, str]:
    data, model = route
    own = [span for span in spans if span.lane in data]
    cells = {"batches made on": ", ".join(data), "trained on": model}
    for kind, title in (("read", "waits for samples"), ("produce", "makes a batch")):
        lengths = [span.end_s - span.start_s for span in own if span.kind == kind]
        if lengths:
            cells[title] = milliseconds(sum(lengths) / len(lengths))
    if ready := [span for span in own if span.kind == "feed"]:
        levels = fill_levels(ready, max(span.end_s for span in spans))
        seconds = sum(stop_s - start_s for start_s, stop_s, _ in levels) or 1.0
        mean = sum((stop_s - start_s) * level for start_s, stop_s, level in levels) / seconds
        cells["batches ready"] = f"{mean:.1f} on average"
    return cells


def workers(folder: Path, chief: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """Return the workers whose folders are here, with their newest reports; empty for a single
    process.

    Args:
        chief: its newest report.
        facts: its run.json.
    """
    folders = sorted(folder.glob("worker-*"), key=lambda path: (len(path.name), path.name))
    reports = {path: read_last_report(path / "metrics.jsonl") for path in folders}
    others = {
        path.name.replace("-", " "): _worker(report, read_facts(path))
        for path, report in reports.items()
        if report
    }
    if not others:
        return ""
    columns = {"worker 0 (chief)": _worker(chief, facts), **others}
    return f"<h3>Workers</h3>{table(columns)}"


def _worker(report: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, str]:
    cells = {"host": str(facts["host"])} if facts.get("host") else {}
    if "step_s" not in report:
        return cells
    cells |= {"step": f"{report['step']:,}", "steps/s": f"{report['steps_per_s']:.2f}"}
    cells |= {"step time": milliseconds(report["step_s"]), "wait": milliseconds(report["wait_s"])}
    cells |= {
        "waits for samples": milliseconds(report["read_s"]),
        "makes a batch": milliseconds(report["produce_s"]),
    }
    return cells | {"pause": milliseconds(report["pause_s"]), "bottleneck": report["bottleneck"]}


def read_facts(folder: Path) -> dict[str, Any]:
    """Return run.json of a run or a worker; empty if there is none that can be read."""
    try:
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
