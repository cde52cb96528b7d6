import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptrl_plugin_report.plain import as_number
from ptrl_plugin_report.text import clip, compact, duration, number, percent, points, shown, visible


def test_characters_that_cannot_be_seen_or_turn_text_around_are_named() -> None:
    assert visible("a\u202eb\x00\ud800\u2066\r\u200b") == "a\\u202eb\\u0000\\ud800\\u2066\\u000d\\u200b"
    assert visible("\U000e0041") == "\\U000e0041"


def test_texts_of_any_script_stay_as_they_are() -> None:
    text = "größer\t日本語\u3000中文\u00a0עברית 😀\n"
    assert visible(text) == text


@given(st.text())
def test_what_is_visible_stays_so_and_can_be_encoded(text: str) -> None:
    assert visible(visible(text)) == visible(text)
    visible(text).encode()


@given(st.text(), st.integers(4, 50))
def test_a_clip_accounts_for_every_character(text: str, limit: int) -> None:
    found = clip(text, limit)
    if len(text) <= limit:
        assert (found.head, found.left_out, found.tail) == (visible(text), 0, "")
    else:
        kept = len(text) - found.left_out
        assert kept == limit
        assert visible(text).startswith(found.head)
        assert visible(text).endswith(found.tail)


def test_short_text_ends_with_an_ellipsis() -> None:
    assert shown("abcdef", 4) == "abc…"
    assert shown({"a": [1, "é"]}) == '{"a": [1, "é"]}'


@pytest.mark.parametrize("value", [None, "1", True, float("nan"), float("inf"), 10**400, 1e300, [1]])
def test_what_is_no_finite_number_is_a_dash(value: object) -> None:
    assert as_number(value) is None
    assert (number(value), percent(value)) == ("–", "–")


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0, 1, 0.12345, -0.5, 12345.6)] == ["0", "1", "0.123", "−0.5", "12,346"]
    assert [compact(value) for value in (0.05, 500, 12000, 2.5e6, -3000)] == ["0.05", "500", "12k", "2.5M", "−3k"]
    assert [points(value) for value in (0.5, -0.25, None)] == ["+50.0", "−25.0", "–"]


def test_durations_are_said_in_two_units_at_most() -> None:
    assert [duration(value) for value in (1.25, 59.6, 125, 7800, None)] == [
        "1.2 s",
        "1 min 00 s",
        "2 min 05 s",
        "2 h 10 min",
        "–",
    ]
