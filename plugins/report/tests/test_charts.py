import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptrl_plugin_report.charts import HEIGHT, WIDTH, Series, make_chart, smooth, thin, ticks

VALUES = st.one_of(st.floats(), st.integers(), st.none(), st.text(max_size=3))


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 10))
def test_ticks_lie_within_their_bounds(low: float, width: float, count: int) -> None:
    found = ticks(low, low + width, count)
    assert all(low - width * 1e-6 <= tick <= low + width * (1 + 1e-6) for tick in found)
    assert len(found) <= count + 2


def test_ticks_are_round() -> None:
    assert ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(3e-14, 1.1e-13, 4) == [4e-14, 6e-14, 8e-14, 1e-13]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_smoothing_stays_within_the_values(values: list[float]) -> None:
    assert all(min(values) - 1e-3 <= value <= max(values) + 1e-3 for value in smooth(values))


def test_few_values_are_not_smoothed() -> None:
    assert smooth([1.0, 5.0, 2.0]) == [1.0, 5.0, 2.0]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=500), st.integers(4, 60))
def test_thinning_keeps_ends_extremes_and_order(values: list[float], limit: int) -> None:
    points = [(float(step), value) for step, value in enumerate(values)]
    found = thin(points, limit)
    assert (found[0], found[-1]) == (points[0], points[-1])
    assert (min(value for _, value in found), max(value for _, value in found)) == (min(values), max(values))
    assert found == sorted(found)
    assert len(found) <= limit + 4


@given(st.lists(st.lists(VALUES, max_size=20), max_size=3), st.booleans())
def test_every_line_stays_within_the_chart(rows: list[list[object]], marked: bool) -> None:
    chart = make_chart("t", [Series(str(place), list(enumerate(row)), marked=marked) for place, row in enumerate(rows)])
    if chart is None:
        return
    for line in chart.lines:
        for pair in re.findall(r"[ML]([^ML]+)", line.raw + line.path):
            x, y = map(float, pair.split())
            assert 0 <= x <= WIDTH
            assert 0 <= y <= HEIGHT
        assert line.last != "–"


@pytest.mark.parametrize("values", [(5e-324, 0.0), (1e-320, 2e-320), (-1e200, 1e200), (1.0, 1 + 2.3e-16)])
def test_values_at_the_edge_of_floating_point_have_a_chart(values: tuple[float, float]) -> None:
    assert make_chart("t", [Series("a", list(enumerate(values)))]) is not None


def test_a_chart_leaves_out_what_is_no_number() -> None:
    chart = make_chart("t", [Series("a", [(1, float("nan")), (2, 0.5)]), Series("b", [(1, float("inf")), (2, "1")])])
    assert chart is not None
    assert [line.name for line in chart.lines] == ["a"]
    assert make_chart("t", [Series("b", [])]) is None


def test_a_single_value_is_a_dot() -> None:
    chart = make_chart("t", [Series("a", [(7, 0.5)])], share=True)
    assert chart is not None
    assert [dot.label for dot in chart.lines[0].dots] == ["a, step 7: 50.0%"]


def test_series_beyond_the_palette_are_dashed() -> None:
    chart = make_chart("t", [Series(str(place), [(0, 1), (1, 2)], place) for place in (1, 9, 17, 25)])
    assert chart is not None
    assert [line.style for line in chart.lines] == ["c1", "c1 dash1", "c1 dash2", "c1 dash2"]
