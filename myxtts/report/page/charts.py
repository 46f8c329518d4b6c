"""Charts as HTML with SVG inside: sharp at any width, readable with any colours, without scripts or
files.

The plotted area is stretched to the width of the page (`preserveAspectRatio="none"`) in units of a
thousandth of its width and height. Labels are HTML above it, so that their size stays that of the
text on a phone.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from myxtts.report.page.history import Point

SIZE = 1000  # units of the plotted area in each direction
TICKS = 4  # of a scale, about
TOOLTIPS = 90  # columns with a tooltip at most
HALF_DIGIT_REM = 0.24  # half of the width of a digit of a label, in any font
MARGIN_REM = 0.4  # right of a plot; see `.plot` of the style
FEW_POINTS = 30  # a curve of so few points shows each of them


class Line(NamedTuple):
    """A curve; `style` is the number of its colour."""

    label: str
    points: Sequence[Point]
    style: int = 0


class Mark(NamedTuple):
    """A vertical line at a step, such as a merge of weights."""

    step: float
    label: str


def sync_marks(every: int, step: int) -> list[Mark]:
    """Return a mark at each step up to `step` at which jobs averaged their weights; none if `every`
    is 0.
    """
    return [Mark(at, "weights averaged") for at in range(every, step + 1, every)] if every else []


class Scale(NamedTuple):
    """The values between two limits, on a linear or a logarithmic axis."""

    low: float
    high: float
    log: bool = False

    def places(self, values: Iterable[float]) -> list[int]:
        """Return where values lie, in units from 0 at the lower limit to SIZE at the upper one;
        others are cut.
        """
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        if self.log:
            values = (math.log(value) if value > 0 else low for value in values)
        factor = SIZE / (high - low)
        return [min(max(round(factor * (value - low)), 0), SIZE) for value in values]

    def ticks(self) -> list[float]:
        """Return about TICKS round values between the limits."""
        if self.log:
            exponents = range(
                math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1
            )
            ticks = [m * 10.0**exponent for exponent in exponents for m in (1, 2, 5)]
            ticks = [tick for tick in ticks if self.low <= tick <= self.high]
            if len(ticks) > 1:
                return ticks[:: -(-len(ticks) // TICKS)]
        rough = (self.high - self.low) / TICKS
        unit = 10.0 ** math.floor(math.log10(rough))
        width = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= rough * 0.9)
        first = math.ceil(self.low / width - 1e-9)
        return [n * width for n in range(first, math.floor(self.high / width + 1e-9) + 1)]


def value_scale(values: Sequence[float], log: bool = False, from_zero: bool = False) -> Scale:
    """Return a scale that has all values, with a margin; logarithmic only if all are positive."""
    low, high = min(values), max(values)
    if log and low > 0:
        return Scale(low / 1.05, high * 1.05, True)
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return Scale(0.0 if from_zero and low >= 0 else low - margin, high + margin)


def number(value: float) -> str:
    """Return a value for people: `0.8342`, `12,300`, `2e-05`."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def line_chart(
    title: str,
    lines: Sequence[Line],
    *,
    unit: str = "",
    log: bool = False,
    from_zero: bool = False,
    marks: Sequence[Mark] = (),
    wide: bool = False,
) -> str:
    """Return curves over the steps; empty if no curve has a point.

    A band around a curve covers the values between the least and the greatest of each of its
    points.

    Args:
        from_zero: the axis begins at zero.
        wide: the chart takes a whole row of the page.
    """
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    steps = _step_scale([point for line in lines for point in line.points])
    values = value_scale(
        [v for line in lines for p in line.points for v in (p.low, p.high)], log, from_zero
    )
    drawn = [_band(line, steps, values) for line in lines] + [
        _curve(line, steps, values) for line in lines
    ]
    drawn += [_mark(mark, steps) for mark in marks if steps.low <= mark.step <= steps.high]
    drawn += _tooltips(lines, steps, unit)
    text = "; ".join(f"{line.label} {_summary(line.points, unit)}" for line in lines)
    return _figure(title, text, "".join(drawn), steps, values, _legend(lines), unit, wide)


def stacked_chart(
    title: str, parts: Mapping[str, tuple[Sequence[Point], int]], note: str = ""
) -> str:
    """Return the shares of several times by step, stacked to 100 %; empty if they have no points.

    Args:
        parts: name -> (points of seconds, number of the colour), from the bottom up.
        note: a sentence below.
    """
    parts = {name: part for name, part in parts.items() if part[0]}
    if not parts:
        return ""
    rows = list(zip(*(points for points, _ in parts.values()), strict=False))
    steps, percent = _step_scale([row[0] for row in rows]), Scale(0.0, 100.0)
    totals = [sum(point.mean for point in row) or 1.0 for row in rows]
    heights = [0.0] * len(rows)
    drawn, lower = [], heights
    for index, (_, style) in enumerate(parts.values()):
        upper = [
            low + 100.0 * row[index].mean / total
            for low, row, total in zip(lower, rows, totals, strict=True)
        ]
        drawn.append(_area(rows, lower, upper, steps, percent, f"a{style}"))
        lower = upper
    for column in _columns([row[0] for row in rows], steps):
        row, total = rows[column.point], totals[column.point]
        shares = ", ".join(
            f"{name} {100 * p.mean / total:.1f} %" for name, p in zip(parts, row, strict=True)
        )
        drawn.append(_hit(column, f"step {number(row[0].last)}: {shares} of {milliseconds(total)}"))
    newest = ", ".join(
        f"{name} {100 * p.mean / totals[-1]:.1f} %" for name, p in zip(parts, rows[-1], strict=True)
    )
    legend = [Line(name, (), style) for name, (_, style) in parts.items()]
    text = f"shares by step; newest: {newest}"
    return _figure(
        title, text, "".join(drawn), steps, percent, _legend(legend, filled=True), "%", False, note
    )


def share_bar(parts: Mapping[str, tuple[float, int]]) -> str:
    """Return one horizontal bar of shares: name -> (amount, number of the colour)."""
    total = sum(amount for amount, _ in parts.values()) or 1.0
    drawn, left = [], 0.0
    for name, (amount, style) in parts.items():
        width = SIZE * amount / total
        title = f"<title>{escape(name)}: {100 * amount / total:.1f} %</title>"
        drawn.append(
            f'<rect class="a{style}" x="{left:.0f}" y="0" width="{width:.1f}"'
            f' height="{SIZE}">{title}</rect>'
        )
        left += width
    label = ", ".join(f"{name} {100 * amount / total:.1f} %" for name, (amount, _) in parts.items())
    return (
        f'<svg class="bar" {_view(label)}>{"".join(drawn)}</svg><p'
        f' class="small">{escape(label)}</p>'
    )


def milliseconds(seconds: float) -> str:
    """Return `113 ms` or `2.4 s`."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _step_scale(points: Sequence[Point]) -> Scale:
    first, last = min(point.first for point in points), max(point.last for point in points)
    return Scale(first, last if last > first else first + 1)


def _summary(points: Sequence[Point], unit: str) -> str:
    first, last = points[0], points[-1]
    low, high = min(p.low for p in points), max(p.high for p in points)
    unit = f" {unit}" if unit else ""
    return (
        f"from {number(first.mean)}{unit} at step {number(first.last)} to {number(last.mean)}{unit}"
        f" at step {number(last.last)}, between {number(low)} and {number(high)}"
    )


def _x(step: float, steps: Scale) -> int:
    return steps.places([step])[0]


def _xs(points: Sequence[Point], steps: Scale) -> list[int]:
    """Return the horizontal places of the middles of points."""
    return steps.places((point.first + point.last) / 2 for point in points)


def _ys(numbers: Iterable[float], values: Scale) -> list[int]:
    return [SIZE - place for place in values.places(numbers)]


def _path(xs: Sequence[int], ys: Sequence[int]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in zip(xs, ys, strict=True))


def _curve(line: Line, steps: Scale, values: Scale) -> str:
    xs, ys = _xs(line.points, steps), _ys((point.mean for point in line.points), values)
    dots = ""
    if len(xs) <= FEW_POINTS:
        places = "".join(f"M{x} {y}h0" for x, y in zip(xs, ys, strict=True))
        dots = f'<path class="dots l{line.style}" d="{places}"/>'
    return f'<path class="l{line.style}" d="{_path(xs, ys)}"/>{dots}'


def _band(line: Line, steps: Scale, values: Scale) -> str:
    if all(point.low == point.high for point in line.points):
        return ""
    xs = _xs(line.points, steps)
    ys = _ys((point.high for point in line.points), values)
    ys += _ys((point.low for point in reversed(line.points)), values)
    return f'<path class="band a{line.style}" d="{_path([*xs, *reversed(xs)], ys)}Z"/>'


def _area(
    rows: Sequence[Sequence[Point]],
    lower: Sequence[float],
    upper: Sequence[float],
    steps: Scale,
    values: Scale,
    style: str,
) -> str:
    """Return the area between two rows of values, each constant over the steps of its point."""
    lasts = steps.places(row[0].last for row in rows)
    xs = [x for edges in zip([0, *lasts], lasts, strict=False) for x in edges]
    above, below = ([y for y in _ys(row, values) for _ in (0, 1)] for row in (upper, lower))
    return f'<path class="{style}" d="{_path([*xs, *reversed(xs)], [*above, *reversed(below)])}Z"/>'


def _mark(mark: Mark, steps: Scale) -> str:
    title = f"<title>{escape(mark.label)}, step {number(mark.step)}</title>"
    return f'<path class="mark" d="M{_x(mark.step, steps)} 0V{SIZE}">{title}</path>'


class _Column(NamedTuple):
    """A vertical strip with a tooltip, and the number of its point."""

    point: int
    left: int
    right: int


def _columns(points: Sequence[Point], steps: Scale) -> list[_Column]:
    stride = -(-len(points) // TOOLTIPS)
    indices = range(stride - 1 if len(points) > stride else 0, len(points), stride)
    middles = _xs([points[i] for i in indices], steps)
    edges = [0, *((a + b) // 2 for a, b in pairwise(middles)), SIZE]
    return [_Column(*column) for column in zip(indices, edges, edges[1:], strict=False)]


def _hit(column: _Column, text: str) -> str:
    rect = f'x="{column.left}" y="0" width="{max(column.right - column.left, 1)}" height="{SIZE}"'
    return f'<rect class="hit" {rect}><title>{escape(text)}</title></rect>'


def _tooltips(lines: Sequence[Line], steps: Scale, unit: str) -> list[str]:
    longest = max(lines, key=lambda line: len(line.points))
    lasts = [[point.last for point in line.points] for line in lines]
    hits = []
    for column in _columns(longest.points, steps):
        step = longest.points[column.point].last
        texts = []
        for line, ends in zip(lines, lasts, strict=True):
            point = line.points[min(bisect_left(ends, step), len(ends) - 1)]
            spread = (
                "" if point.low == point.high else f" ({number(point.low)} to {number(point.high)})"
            )
            at = "" if point.last == step else f" at step {number(point.last)}"
            texts.append(f"{line.label} {number(point.mean)}{spread}{at}")
        hits.append(
            _hit(column, f"step {number(step)}: {', '.join(texts)}{' ' * bool(unit)}{unit}")
        )
    return hits


def _view(label: str) -> str:
    return (
        f'viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" role="img"'
        f' aria-label="{escape(label)}"'
    )


def _legend(lines: Sequence[Line], filled: bool = False) -> str:
    """Return the labels of several curves, or areas, beside their colours."""
    if len(lines) < 2:
        return ""
    shape = (
        '<rect class="a{}" width="20" height="10"/>'
        if filled
        else '<path class="l{}" d="M0 5H20"/>'
    )
    keys = (
        '<span class="key"><svg viewBox="0 0 20 10"'
        f' aria-hidden="true">{shape.format(line.style)}</svg>{escape(line.label)}</span>'
        for line in lines
    )
    return f'<span class="legend">{"".join(keys)}</span>'


def _x_label(place: int, text: str) -> str:
    """Return a label below an axis: centred at its place, unless it would leave the chart on the
    right.
    """
    return (
        f'<span style="left:min({place / 10:g}%,100% -'
        f' {len(text) * HALF_DIGIT_REM - MARGIN_REM:.2f}rem)">{text}</span>'
    )


def _figure(
    title: str,
    text: str,
    drawn: str,
    steps: Scale,
    values: Scale,
    legend: str,
    unit: str,
    wide: bool,
    note: str = "",
) -> str:
    levels, places = values.ticks(), [tick for tick in steps.ticks() if tick == int(tick)]
    ys, xs = _ys(levels, values), steps.places(places)
    grid = "".join(f"M0 {y}H{SIZE}" for y in ys)
    y_labels = "".join(
        f'<span style="top:{y / 10:g}%">{number(level)}</span>'
        for y, level in zip(ys, levels, strict=True)
    )
    x_labels = "".join(_x_label(x, number(step)) for x, step in zip(xs, places, strict=True))
    unit = f' <span class="small">{escape(unit)}</span>' if unit else ""
    note = f'<p class="small">{escape(note)}</p>' if note else ""
    label = _view(f"{title}: {text}")
    return (
        "<figure"
        f' class="chart{" wide" * wide}"><figcaption><b>{escape(title)}</b>{unit}{legend}</figcaption><div'
        f' class="plot"><div class="ys" aria-hidden="true">{y_labels}</div><svg {label}><path'
        f' class="grid" d="{grid}"/>{drawn}</svg><div class="xs"'
        f' aria-hidden="true">{x_labels}</div></div>{note}</figure>'
    )
