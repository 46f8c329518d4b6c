"""The last seconds of a run: what each thread did, and how many batches were ready. No
TensorFlow.
"""

from collections.abc import Iterable, Sequence
from html import escape

from myxtts.clock import MODEL, Span
from myxtts.report.page.charts import SIZE, milliseconds

STEPS = 24  # in the picture
ENOUGH_STEPS = 8
LONG_PAUSE_S = 1.0
STYLES = {
    "step": 0,
    "produce": 2,
    "read": 3,
    "feed": 4,
    "wait": 5,
}  # numbers of colours; pauses and others have 6
OTHERS = 6
TITLES = {
    "read": "{}: waits for samples of the reader",
    "produce": "{}: makes batches",
    "feed": "{}: batches ready in the feed",
}


def excerpt(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of the newest steps, cut to these steps, with times from 0; for
    `timeline.json`.

    A long pause is left out with all after it, unless enough steps follow it.
    """
    stretch = _newest_stretch([span for span in spans if span.lane == MODEL])
    steps = [span for span in stretch if span.kind == "step"][-STEPS:]
    if not steps:
        return []
    start_s, end_s = steps[0].start_s, steps[-1].end_s
    return [
        span._replace(
            start_s=max(span.start_s, start_s) - start_s, end_s=min(span.end_s, end_s) - start_s
        )
        for span in spans
        if span.end_s > start_s and span.start_s < end_s
    ]


def _newest_stretch(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of the main thread after the newest long pause; those before it where these
    are few steps.
    """
    stretches: list[list[Span]] = [[]]
    for span in spans:
        if span.kind != "step" and span.end_s - span.start_s > LONG_PAUSE_S:
            stretches.append([])
        else:
            stretches[-1].append(span)
    longest = max(stretches, key=lambda stretch: _step_count(stretch))
    return next(
        (part for part in reversed(stretches) if _step_count(part) >= ENOUGH_STEPS), longest
    )


def _step_count(spans: Iterable[Span]) -> int:
    return sum(span.kind == "step" for span in spans)


def lanes(spans: Sequence[Span]) -> str:
    """Return the lanes of an excerpt below each other; empty for an empty one."""
    if not spans:
        return ""
    end_s = max(span.end_s for span in spans)
    rows = [_lane(title, row, end_s) for title, row in _by_lane(spans).items()]
    ticks = "".join(
        f'<span style="left:{20 * i}%">{milliseconds(end_s * i / 5)}</span>' for i in range(6)
    )
    return (
        f'<div class="lanes">{"".join(rows)}<div class="xs" aria-hidden="true">{ticks}</div></div>'
    )


def _by_lane(spans: Sequence[Span]) -> dict[str, list[Span]]:
    """Return the spans by the title of their lane: of the data devices, of the model devices, of
    other threads.
    """
    producers = dict.fromkeys(span.lane for span in spans if span.kind in TITLES)
    rows: dict[str, list[Span]] = {}
    for producer in producers:
        for kind, title in TITLES.items():
            row = [span for span in spans if span.lane == producer and span.kind == kind]
            rows[title.format(producer)] = row
    rows["model device: steps, waits and pauses"] = [span for span in spans if span.lane == MODEL]
    for lane in dict.fromkeys(
        span.lane for span in spans if span.lane != MODEL and span.kind not in TITLES
    ):
        rows[lane] = [span for span in spans if span.lane == lane and span.kind not in TITLES]
    return {title: row for title, row in rows.items() if row}


def _lane(title: str, spans: Sequence[Span], end_s: float) -> str:
    if spans[0].kind == "feed":
        drawn, summary = _fill(spans, end_s)
    else:
        drawn = "".join(_bar(span, end_s) for span in spans)
        busy_s = sum(span.end_s - span.start_s for span in spans)
        summary = f"{100 * busy_s / end_s:.0f} % of {milliseconds(end_s)}"
    label = escape(f"{title}, {summary}")
    view = f'viewBox="0 0 {SIZE} 100" preserveAspectRatio="none" role="img" aria-label="{label}"'
    return (
        f'<div class="lane"><span class="small">{escape(title)}</span><svg'
        f" {view}>{drawn}</svg></div>"
    )


def _bar(span: Span, end_s: float) -> str:
    left, width = SIZE * span.start_s / end_s, SIZE * (span.end_s - span.start_s) / end_s
    what = f"{span.kind} {span.number}" if span.number else span.kind
    title = f"<title>{escape(what)}: {milliseconds(span.end_s - span.start_s)}</title>"
    shade = f"a{STYLES.get(span.kind, OTHERS)}{' odd' * (span.number % 2)}"
    return (
        f'<rect class="{shade}" x="{left:.1f}" y="0" width="{max(width, 1.0):.1f}"'
        f' height="100">{title}</rect>'
    )


def fill_levels(spans: Iterable[Span], end_s: float) -> list[tuple[float, float, int]]:
    """Return how many batches were ready, as (from, to, batches).

    It ends where the newest batch that was taken became ready: batches that lie in the feed now
    have no span yet.
    """
    spans = list(spans)
    end_s = min(end_s, max(span.start_s for span in spans))
    changes = sorted([(span.start_s, 1) for span in spans] + [(span.end_s, -1) for span in spans])
    levels: list[tuple[float, float, int]] = []
    level, since_s = 0, 0.0
    for at_s, change in changes:
        if at_s > end_s:
            break
        if at_s > since_s:
            levels.append((since_s, at_s, level))
        level, since_s = level + change, at_s
    return [*levels, (since_s, end_s, level)] if end_s > since_s else levels


def _fill(spans: Sequence[Span], end_s: float) -> tuple[str, str]:
    levels = fill_levels(spans, end_s)
    most = max((level for _, _, level in levels), default=0) or 1
    bars = []
    for start_s, stop_s, level in levels:
        left, width, height = (
            SIZE * start_s / end_s,
            SIZE * (stop_s - start_s) / end_s,
            100 * level / most,
        )
        title = f"<title>{level} ready for {milliseconds(stop_s - start_s)}</title>"
        place = (
            f'x="{left:.1f}" y="{100 - height:.0f}" width="{max(width, 0.5):.1f}"'
            f' height="{max(height, 4):.0f}"'
        )
        bars.append(f'<rect class="a{STYLES["feed" if level else "wait"]}" {place}>{title}</rect>')
    seconds = sum(stop_s - start_s for start_s, stop_s, _ in levels) or 1.0
    mean = sum((stop_s - start_s) * level for start_s, stop_s, level in levels) / seconds
    return "".join(bars), f"{mean:.1f} of {most} on average"
