r"""Reads plain numbers as exact fractions, within limits.

Read are integers and decimals with a sign, thousands separators (`,`, `{,}`, `\,`), an exponent (`1.5e3`),
simple fractions (`3/4`, `\frac{3}{4}`) and mixed numbers (`1 1/2`). Digits are ASCII: a superscript two is
not a two. No sum, power or unit is read; those belong to an expression parser.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

MAX_DIGITS = 1_000
"""Most digits, and largest power of ten, of a number that is read."""

UNSIGNED_INTEGER = r"(?:[0-9]{1,3}(?:(?:,|\{,\}|\\,)[0-9]{3}(?![0-9]))++|[0-9]++)"
_SIGN = r"(?P<sign>[-+\u2212])?\s*+"
_DECIMAL = re.compile(
    rf"{_SIGN}(?P<whole>{UNSIGNED_INTEGER})?(?:\.(?P<part>[0-9]*+))?(?:[eE](?P<power>[-+\u2212]?[0-9]++))?"
)
_RATIO = re.compile(
    rf"{_SIGN}(?:(?P<mixed>[0-9]++)\s++(?=[0-9]))?(?P<over>{UNSIGNED_INTEGER})\s*+/\s*+(?P<under>[0-9]++)"
)
_LATEX_RATIO = re.compile(
    rf"{_SIGN}(?P<mixed>[0-9]++)?\s*+"
    r"\\[dt]?frac\s*+(?:\{\s*+(?P<over>[-+]?[0-9]++)\s*+\}|(?P<over_digit>[0-9]))"
    r"\s*+(?:\{\s*+(?P<under>[-+]?[0-9]++)\s*+\}|(?P<under_digit>[0-9]))"
)
_NOT_DIGITS = re.compile(r"[^0-9]+")


class OverLimitError(ValueError):
    """A text is a number, but of more digits or a larger exponent than is read."""


@lru_cache(maxsize=2048)
def parse_number(text: str) -> Fraction | None:
    """Returns the exact value of `text`, or None when it is no plain number.

    Time is linear in the text; numbers of more than `MAX_DIGITS` digits are not computed.

    Raises:
        OverLimitError: When it is a number beyond `MAX_DIGITS` digits, or times a larger power of ten.
    """
    if match := _DECIMAL.fullmatch(text):
        return _decimal(match)
    if match := _RATIO.fullmatch(text):
        return _ratio(match, match["over"], match["under"])
    if match := _LATEX_RATIO.fullmatch(text):
        over, under = match["over"] or match["over_digit"], match["under"] or match["under_digit"]
        if match["mixed"] and not (over + under).isdigit():
            return None  # 2\frac{-1}{3} is no mixed number
        return _ratio(match, over, under)
    return None


def _decimal(match: re.Match[str]) -> Fraction | None:
    """Returns sign × digits × 10^(power − decimals)."""
    part = match["part"] or ""
    digits = _NOT_DIGITS.sub("", match["whole"] or "") + part
    if not digits:
        return None
    power = _bounded(match["power"] or "0", digits=len(str(MAX_DIGITS)))
    if abs(power) > MAX_DIGITS:
        raise OverLimitError(f"an exponent beyond {MAX_DIGITS}")
    magnitude = _bounded(digits) * 10 ** max(power, 0)
    scale = 10 ** (len(part) + max(-power, 0))
    return Fraction(_signed(match, magnitude), scale)


def _ratio(match: re.Match[str], over: str, under: str) -> Fraction | None:
    """Returns sign × (mixed + over / under); None for a denominator of 0."""
    denominator = _bounded(under)
    if denominator == 0:
        return None
    numerator = _bounded(over) + _bounded(match["mixed"] or "0") * denominator
    return Fraction(_signed(match, numerator), denominator)


def _signed(match: re.Match[str], magnitude: int) -> int:
    """Returns `magnitude` with the match's sign."""
    return -magnitude if match["sign"] in ("-", "\u2212") else magnitude


def _bounded(text: str, digits: int = MAX_DIGITS) -> int:
    """Returns the integer that `text` writes, with separators and a sign, if it is short enough."""
    plain = _NOT_DIGITS.sub("", text).lstrip("0") or "0"
    if len(plain) > digits:
        raise OverLimitError(f"a number of more than {digits} digits")
    return -int(plain) if text[0] in "-\u2212" else int(plain)
