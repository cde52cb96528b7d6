"""Curves as inline SVG: one line per series, smoothed over its faint raw points."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 520, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 30
COLOURS = 8
"""Number of colours in the page's palette."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart.

    Args:
        name: Shown in the legend.
        points: (step, value), ascending; values that are no number are left out.
        marked: Whether its points are marked and not smoothed, as those of evaluations.
        colour: Which colour of the palette.
    """

    name: str
    points: Sequence[tuple[float, float]]
    marked: bool = False
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Tick:
    """A label on an axis."""

    position: float
    label: str


@dataclass(frozen=True, slots=True)
class Line:
    """A series in the chart's pixels."""

    name: str
    colour: int
    marked: bool
    raw: str
    smooth: str
    dots: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """What the template draws.

    Args:
        title: Heading.
        lines: Lines in pixels.
        horizontal: Ticks of the step axis.
        vertical: Ticks of the value axis.
    """

    title: str
    lines: Sequence[Line]
    horizontal: Sequence[Tick]
    vertical: Sequence[Tick]


def make_chart(title: str, series: Sequence[Series], *, percent: bool = False) -> Chart | None:
    """Returns a chart of the series that have points; None when none has.

    Args:
        title: Heading.
        series: The lines.
        percent: Whether values are shares, shown in percent from 0 to 100.
    """
    kept = [Series(one.name, _finite(one.points), one.marked, one.colour) for one in series]
    kept = [one for one in kept if one.points]
    if not kept:
        return None
    steps = [step for one in kept for step, _ in one.points]
    values = [value for one in kept for _, value in one.points]
    low, high = (0.0, 1.0) if percent else _bounds(min(values), max(values))
    across = _scale(min(steps), max(steps), LEFT, WIDTH - RIGHT)
    up = _scale(low, high, HEIGHT - BOTTOM, TOP)
    return Chart(
        title=title,
        lines=[_line(one, across, up) for one in kept],
        horizontal=[Tick(across(value), f"{value:g}") for value in ticks(min(steps), max(steps), 6)],
        vertical=[Tick(up(value), f"{value:.0%}" if percent else f"{value:g}") for value in ticks(low, high, 5)],
    )


def _finite(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(step, value) for step, value in points if isinstance(value, (int, float)) and math.isfinite(value)]


def _bounds(low: float, high: float) -> tuple[float, float]:
    """Returns bounds with a little room; 0 is included where it is near."""
    if low == high:
        return low - (abs(low) or 1.0) * 0.1, high + (abs(high) or 1.0) * 0.1
    room = (high - low) * 0.05
    return (0.0 if 0 <= low < high / 2 else low - room), high + room


class _scale:
    """Maps values to pixels."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._start = low, start
        self._factor = (end - start) / ((high - low) or 1.0)

    def __call__(self, value: float) -> float:
        return round(self._start + (value - self._low) * self._factor, 1)


def _line(series: Series, across: _scale, up: _scale) -> Line:
    raw = [(across(step), up(value)) for step, value in series.points]
    values = smooth([value for _, value in series.points])
    smoothed = [(across(step), up(value)) for (step, _), value in zip(series.points, values, strict=True)]
    return Line(
        name=series.name,
        colour=series.colour % COLOURS,
        marked=series.marked,
        raw=_path(raw),
        smooth=_path(raw if series.marked else smoothed),
        dots=raw if series.marked else (),
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def smooth(values: Sequence[float]) -> list[float]:
    """Returns an exponential moving average, over about a tenth of the values, unbiased at the start."""
    decay = 1 - 1 / max(1.0, len(values) / 10)
    total = weight = 0.0
    found = []
    for value in values:
        total, weight = decay * total + value, decay * weight + 1
        found.append(total / weight)
    return found


def ticks(low: float, high: float, count: int) -> list[float]:
    """Returns round values between two bounds, about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    magnitude = 10 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)]
