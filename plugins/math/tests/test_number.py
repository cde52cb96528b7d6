from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptrl_plugin_math.number import MAX_DIGITS, OverLimitError, parse_number

integers = st.integers(-(10**60), 10**60)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("+42", 42),
        ("-42", -42),
        ("\u221242", -42),
        ("- 42", -42),
        ("007", 7),
        ("42.", 42),
        (".5", Fraction(1, 2)),
        ("-0.125", Fraction(-1, 8)),
        ("-0", 0),
        ("1,234", 1234),
        ("1,234,567.89", Fraction(123456789, 100)),
        ("1{,}234", 1234),
        (r"12\,345", 12345),
        ("1e3", 1000),
        ("1.5E-1", Fraction(3, 20)),
        ("3/4", Fraction(3, 4)),
        ("-6 / 8", Fraction(-3, 4)),
        ("1,000/10", 100),
        ("2 1/2", Fraction(5, 2)),
        ("-2 1/2", Fraction(-5, 2)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        (r"2\tfrac{1}{2}", Fraction(5, 2)),
        (r"\frac34", Fraction(3, 4)),
    ],
)
def test_plain_numbers_are_read_exactly(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "-", "--1", "1,23", "12,34,567", "1234,567", "1,234,56", "5²", "52_8", "2^10", "1/0",
        "1/2/3",
        "34+38", "x", "1 2", "½", "\u0664\u0662", "\uff14\uff12", "0x10", "1_000", "1e", "e5", "nan", "inf", 
        "-Infinity", "1e1.5",
        r"\frac{1}{0}", r"\frac{x}{2}", r"2\frac{-1}{3}", "42 apples", "50%", "\ud800", "1\x002",
    ],
)  # fmt: skip
def test_anything_else_is_no_number(text):
    assert parse_number(text) is None


@given(integers)
def test_an_integer_survives_every_spelling(value):
    for text in (
        str(value),
        f"{value:,}",
        f"{value:,}".replace(",", "{,}"),
        f"{value}.0",
        f"{value}e0",
        f"{value}/1",
    ):
        assert parse_number(text) == value


@given(integers, st.integers(1, 10**30))
def test_a_fraction_survives_both_spellings(over, under):
    assert parse_number(f"{over}/{under}") == Fraction(over, under)
    assert parse_number(rf"\frac{{{over}}}{{{under}}}") == Fraction(over, under)


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=12))
def test_a_decimal_survives(value):
    assert parse_number(f"{value:f}") == Fraction(value)
    assert parse_number(f"{value:e}") == Fraction(value)


@given(st.text())
def test_no_text_does_more_than_fail_to_parse(text):
    with suppress(OverLimitError):
        parse_number(text)


@pytest.mark.parametrize(
    "text",
    [
        "1" * (MAX_DIGITS + 1),
        "1e1001",
        "1e-1001",
        "1e999999999999999999999",
        "1/" + "3" * (MAX_DIGITS + 1),
        r"\frac{" + "9" * 5000 + "}{2}",
        "0." + "1" * (MAX_DIGITS + 1),
    ],
)
def test_a_number_beyond_the_limits_is_not_computed(text):
    with pytest.raises(OverLimitError):
        parse_number(text)


def test_numbers_at_the_limits_are_computed():
    assert parse_number("1" * MAX_DIGITS) == int("1" * MAX_DIGITS)
    assert parse_number("0" * 4000 + "7") == 7
    assert parse_number("1e1000") == 10**1000
