"""The spans of a profile as a trace for Perfetto or chrome://tracing. Pure."""

from collections.abc import Sequence
from typing import Any

from myxtts.clock import Span
from myxtts.throughput.model import STAGES


def timeline_rows(spans: Sequence[Span]) -> dict[str, list[Span]]:
    """Return spans by row, in the order of STAGES; a stage whose batches overlap, such as reading,
    has several rows.
    """
    rows: dict[str, list[Span]] = {}
    for stage in STAGES:
        stage_rows: list[list[Span]] = []
        for span in sorted(
            (span for span in spans if span.kind == stage), key=lambda span: span.start_s
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


def chrome_trace(spans: Sequence[Span], name: str) -> dict[str, Any]:
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
            event = {"ph": "X", **common, "name": f"{span.kind} {span.number}", "cat": span.kind}
            times = {
                "ts": 1e6 * (span.start_s - origin_s),
                "dur": 1e6 * (span.end_s - span.start_s),
            }
            events.append(event | times | {"args": {"batch": span.number}})
    return {"traceEvents": events, "displayTimeUnit": "ms"}
