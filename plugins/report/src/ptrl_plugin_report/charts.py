"""Curves as inline SVG: geometry in pixels, which the template only writes down.

A training series is a smoothed line over its faint raw values; an evaluated one is a line through marked points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ptrl_plugin_report.plain import as_number
from ptrl_plugin_report.text import compact, number, percent

WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 40, 10, 8, 22
COLOURS = 8
"""Number of colours in the page's palette; series beyond them repeat it with dashed lines."""

DRAWN = 400
"""Points of a line that are drawn; of more, the extremes of as many stretches."""

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart.

    Args:
        name: Shown in the legend.
        points: (step, value), by ascending step; values that are no number are left out.
        place: Decides the colour, the same in every chart of the page; None is the colour of text.
        marked: Whether its points are marked and not smoothed, as those of evaluations.
    """

    name: str
    points: Sequence[tuple[float, object]]
    place: int | None = 0
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """A label on an axis."""

    position: float
    label: str


@dataclass(frozen=True, slots=True)
class Dot:
    """A marked point, with what it says when it is pointed at."""

    x: float
    y: float
    label: str


@dataclass(frozen=True, slots=True)
class Line:
    """A series in the chart's pixels.

    Args:
        name: Its name.
        style: Classes of its colour and dashes.
        raw: Path of the raw values; empty where they are not drawn.
        path: Path of the line.
        dots: Its marked points.
        last: The line's last value, as the legend shows it.
    """

    name: str
    style: str
    raw: str
    path: str
    dots: Sequence[Dot]
    last: str


@dataclass(frozen=True, slots=True)
class Chart:
    """What the template draws: lines and the ticks of the step axis and of the value axis."""

    title: str
    lines: Sequence[Line]
    horizontal: Sequence[Tick]
    vertical: Sequence[Tick]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    bottom: int = HEIGHT - BOTTOM


def make_chart(title: str, series: Sequence[Series], *, share: bool = False, whole: bool = False) -> Chart | None:
    """Returns a chart of the series that have points; None when none has.

    Args:
        title: Heading.
        series: The lines.
        share: Whether values are shares, shown in percent.
        whole: Whether the axis goes from 0 to 1 whatever the values.
    """
    kept = [(one, points) for one in series if (points := _numbers(one.points))]
    if not kept:
        return None
    steps = [step for _, points in kept for step, _ in points]
    values = [value for _, points in kept for _, value in points]
    low, high = (0.0, 1.0) if whole else _bounds(min(values), max(values))
    across = _scale(min(steps), max(steps), LEFT, WIDTH - RIGHT)
    up = _scale(low, high, HEIGHT - BOTTOM, TOP)
    label = _share_label if share else compact
    return Chart(
        title=title,
        lines=[_line(one, points, across, up, percent if share else number) for one, points in kept],
        horizontal=[Tick(across(step), compact(step)) for step in ticks(min(steps), max(steps), 5) if step % 1 == 0],
        vertical=[Tick(up(value), label(value)) for value in ticks(low, high, 5)],
    )


def _share_label(value: float) -> str:
    return f"{100 * value:g}%"


def _numbers(points: Sequence[tuple[float, object]]) -> list[Point]:
    return [(step, found) for step, value in points if (found := as_number(value)) is not None]


def _bounds(low: float, high: float) -> Point:
    """Returns bounds with a little room; 0 is one of them where it is near."""
    if low == high:
        return (0.0, 1.0) if low == 0 else (min(0.0, 1.2 * low), max(0.0, 1.2 * high))
    room = (high - low) * 0.06
    near = 0 <= low < high / 2
    return (0.0 if near else low - room), high + room


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Returns what maps values to pixels."""
    factor = (end - start) / ((high - low) or 1.0)
    return lambda value: round(start + (value - low) * factor, 1)


def _line(
    series: Series,
    points: Sequence[Point],
    across: Callable[[float], float],
    up: Callable[[float], float],
    label: Callable[[float], str],
) -> Line:
    marked = series.marked or len(points) == 1
    smoothed = smooth([value for _, value in points])
    drawn = points if marked else [(step, value) for (step, _), value in zip(points, smoothed, strict=True)]

    def path(points: Sequence[Point]) -> str:
        return "M" + "L".join(f"{across(step):g} {up(value):g}" for step, value in thin(points, DRAWN))

    dots = [Dot(across(step), up(value), f"{series.name}, step {step:g}: {label(value)}") for step, value in points]
    return Line(
        name=series.name,
        style=_style(series.place),
        raw="" if marked else path(points),
        path=path(drawn),
        dots=dots if marked else (),
        last=label(drawn[-1][1]),
    )


def _style(place: int | None) -> str:
    if place is None:
        return "ink"
    return f"c{place % COLOURS}" + (f" dash{min(place // COLOURS, 2)}" if place >= COLOURS else "")


def smooth(values: Sequence[float]) -> list[float]:
    """Returns an exponential moving average, over about a tenth of the values, unbiased at the start."""
    decay = 1 - 1 / max(1.0, len(values) / 10)
    total = weight = 0.0
    found = []
    for value in values:
        total, weight = decay * total + value, decay * weight + 1
        found.append(total / weight)
    return found


def thin(points: Sequence[Point], limit: int) -> list[Point]:
    """Returns at most about `limit` of the points: the lowest and the highest of each stretch, and both ends."""
    if len(points) <= limit:
        return list(points)
    stride = math.ceil(2 * len(points) / limit)
    kept = {0, len(points) - 1}
    for start in range(0, len(points), stride):
        stretch = range(start, min(start + stride, len(points)))
        kept.add(min(stretch, key=lambda index: points[index][1]))
        kept.add(max(stretch, key=lambda index: points[index][1]))
    return [points[index] for index in sorted(kept)]


def ticks(low: float, high: float, count: int) -> list[float]:
    """Returns round values between two bounds, about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * magnitude for factor in (1, 2, 5) if factor * magnitude >= rough), 10 * magnitude)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{index * step:.12g}") for index in range(first, last + 1)]
