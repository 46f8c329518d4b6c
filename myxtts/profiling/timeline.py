"""Spans as rows that do not overlap, for a picture, and as a trace for Perfetto or chrome://tracing. Pure."""

from collections.abc import Sequence
from typing import Any

from myxtts.planner.emulator import Span
from myxtts.planner.stage_times import STAGES

SHOWN = 12  # batches of a picture


def timeline_rows(spans: Sequence[Span]) -> dict[str, list[Span]]:
    """Spans by row, in the order of STAGES. Where batches of a lane overlap, as in reading, it has several rows."""
    rows = {}
    for lane in STAGES:
        own: list[list[Span]] = []
        for span in sorted((one for one in spans if one.stage == lane), key=lambda one: one.start_s):
            free = next((row for row in own if row[-1].end_s <= span.start_s), None)
            if free is None:
                own.append([span])
            else:
                free.append(span)
        rows |= {lane if len(own) == 1 else f"{lane} {number + 1}": row for number, row in enumerate(own)}
    return rows


def timeline_excerpt(spans: Sequence[Span], batches: int = SHOWN) -> list[Span]:
    """What happens while some batches in the middle are stepped on; bars that reach beyond are cut."""
    steps = sorted((span for span in spans if span.stage == "step"), key=lambda span: span.start_s)
    first = max(len(steps) - batches, 0) // 2
    start_s, end_s = steps[first].start_s, steps[min(first + batches, len(steps)) - 1].end_s
    shown = [span for span in spans if span.end_s > start_s and span.start_s < end_s]
    return [one._replace(start_s=max(one.start_s, start_s), end_s=min(one.end_s, end_s)) for one in shown]


def chrome_trace(spans: Sequence[Span], name: str) -> dict[str, Any]:
    """The Trace Event Format (Google, "Trace Event Format", JSON object form): complete events, times in µs."""
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": name}}]
    began_s = min(span.start_s for span in spans)
    for tid, (row, own) in enumerate(timeline_rows(spans).items(), 1):
        common = {"pid": 0, "tid": tid}
        events.append({"ph": "M", **common, "name": "thread_name", "args": {"name": row}})
        events.append({"ph": "M", **common, "name": "thread_sort_index", "args": {"sort_index": tid}})
        for span in own:
            event = {"ph": "X", **common, "name": f"{span.stage} {span.batch}", "cat": span.stage}
            times = {"ts": 1e6 * (span.start_s - began_s), "dur": 1e6 * (span.end_s - span.start_s)}
            events.append(event | times | {"args": {"batch": span.batch}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}
