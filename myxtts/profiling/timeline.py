"""Spans as rows without overlap, for a picture and for a trace in Perfetto or chrome://tracing.
Pure.
"""

from collections.abc import Sequence
from typing import Any

from myxtts.planner.emulator import StageSpan
from myxtts.planner.stage_times import STAGES

EXCERPT_BATCHES = 12


def timeline_rows(spans: Sequence[StageSpan]) -> dict[str, list[StageSpan]]:
    """Return spans by row, in the order of STAGES; a stage whose batches overlap, such as reading,
    has several rows.
    """
    rows: dict[str, list[StageSpan]] = {}
    for stage in STAGES:
        stage_rows: list[list[StageSpan]] = []
        for span in sorted(
            (span for span in spans if span.stage == stage), key=lambda span: span.start_s
        ):
            free_row = next((row for row in stage_rows if row[-1].end_s <= span.start_s), None)
            if free_row is None:
                stage_rows.append([span])
            else:
                free_row.append(span)
        single = len(stage_rows) == 1
        rows |= {
            stage if single else f"{stage} {number}": row
            for number, row in enumerate(stage_rows, 1)
        }
    return rows


def timeline_excerpt(spans: Sequence[StageSpan], batches: int = EXCERPT_BATCHES) -> list[StageSpan]:
    """Return the spans during the steps of some batches in the middle, cut at the first and last of
    these steps.
    """
    steps = sorted((span for span in spans if span.stage == "step"), key=lambda span: span.start_s)
    first = max(len(steps) - batches, 0) // 2
    start_s, end_s = steps[first].start_s, steps[min(first + batches, len(steps)) - 1].end_s
    return [
        span._replace(start_s=max(span.start_s, start_s), end_s=min(span.end_s, end_s))
        for span in spans
        if span.end_s > start_s and span.start_s < end_s
    ]


def chrome_trace(spans: Sequence[StageSpan], name: str) -> dict[str, Any]:
    """Return complete events in the Trace Event Format (Google, JSON object form), with times in
    µs.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": name}}
    ]
    origin_s = min(span.start_s for span in spans)
    for tid, (row, row_spans) in enumerate(timeline_rows(spans).items(), 1):
        common = {"pid": 0, "tid": tid}
        events.append({"ph": "M", **common, "name": "thread_name", "args": {"name": row}})
        events.append(
            {"ph": "M", **common, "name": "thread_sort_index", "args": {"sort_index": tid}}
        )
        for span in row_spans:
            event = {"ph": "X", **common, "name": f"{span.stage} {span.batch}", "cat": span.stage}
            times = {
                "ts": 1e6 * (span.start_s - origin_s),
                "dur": 1e6 * (span.end_s - span.start_s),
            }
            events.append(event | times | {"args": {"batch": span.batch}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}
