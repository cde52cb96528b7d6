r"""Finds the answer that a completion states.

Every extraction looks only at the text after the last `</think>`, takes the last statement, and never falls
back on an earlier one: a completion that ends in an empty or unfinished statement has not answered.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from ptrl_plugin_format import after_thinking, is_blank, last_box
from ptrl_plugin_math.number import MAX_DIGITS, UNSIGNED_INTEGER

Extraction = Literal["boxed", "last_number", "tag", "hash"]

MAX_ANSWER = 4 * MAX_DIGITS
"""Most characters of an answer."""

_GLANCES = (16, 512, MAX_ANSWER)
"""How many characters before the last digit are searched for the last number, until it is found whole."""

# One lexeme of running text. Signs count only where nothing stands before them that they could subtract from.
_SIGN = r"(?:(?<![0-9A-Za-z)\]}])[-+\u2212])?"
_DECIMAL = rf"(?:{UNSIGNED_INTEGER}(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++(?![A-Za-z0-9]))?|\.[0-9]++)"
_LATEX_RATIO = rf"{_SIGN}(?:[0-9]++\s?)?\\[dt]?frac\s?\{{[^{{}}]*+\}}\s?\{{[^{{}}]*+\}}"
_NUMBER = rf"(?:{_SIGN}\\?\$?)(?:[0-9]++ (?=[0-9]++/))?{_DECIMAL}(?:/[0-9]++)?"
_WORD = r"\\?[^\W0-9_][\w\u00b2\u00b3]*+(?:\^\{?[0-9]++\}?)?"  # with its digits: x2, CO2, cm^2, \times
_COMPOUND = r"(?:\^|[_*/.](?=[{0-9])|[\u00b2\u00b3\u00d7]|\\times|\\cdot)[^\s=,;]*+"
_LEXEME = re.compile(rf"(?P<value>{_LATEX_RATIO}|{_NUMBER})(?P<compound>{_COMPOUND})?|{_WORD}")
_CURRENCY = str.maketrans("", "", "$\\")


class NoAnswerError(ValueError):
    """A completion states no answer; the message says why."""


def extract_answer(text: str, extraction: Extraction, tag: str = "answer") -> str:
    r"""Returns the answer that `text` states last, without white space around it.

    Args:
        text: A completion.
        extraction: `boxed`: the last `\boxed{...}`; `last_number`: the last number; `tag`: the last section
            `<tag>...</tag>`; `hash`: the rest of the line after the last `####` (GSM8K's form).
        tag: The section's name for `tag`.

    Raises:
        NoAnswerError: When there is none, or the last one is empty, unfinished or longer than `MAX_ANSWER`.
    """
    visible = after_thinking(text)
    answer = _tagged(visible, tag) if extraction == "tag" else _EXTRACTIONS[extraction](visible)
    if len(answer) > MAX_ANSWER:
        raise NoAnswerError(f"an answer of more than {MAX_ANSWER} characters")
    return answer.strip()


def _boxed(text: str) -> str:
    """Returns the content of the last box; a box in the box is for the normalization to open."""
    box = last_box(text)
    if box is None:
        raise NoAnswerError(r"no \boxed{...}")
    if not box.closed:
        raise NoAnswerError("the last box is not closed")
    content = box.content(text)
    if len(content) <= MAX_ANSWER and is_blank(content):
        raise NoAnswerError("the last box is empty")
    return content


def _tagged(text: str, tag: str) -> str:
    """Returns the content of the last section of that name."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    start = text.rfind(opening)
    if start < 0:
        raise NoAnswerError(f"no {opening}")
    start += len(opening)
    end = text.find(closing, start)
    if end < 0:
        raise NoAnswerError(f"the last {opening} is not closed")
    if not text[start : min(end, start + MAX_ANSWER)].strip():
        raise NoAnswerError(f"the last {opening} is empty")
    return text[start:end]


def _hashed(text: str) -> str:
    """Returns the rest of the line after the last `####`."""
    start = text.rfind("####")
    if start < 0:
        raise NoAnswerError("no ####")
    start += len("####")
    end = text.find("\n", start)
    line = (text[start:] if end < 0 else text[start:end]).strip()
    if not line:
        raise NoAnswerError("nothing after the last ####")
    return line


def _last_number(text: str) -> str:
    """Returns the last number as it is written, without currency signs.

    Only the last characters up to the last digit are read, `MAX_ANSWER` at most, so that the time is linear.
    """
    words = text[-_GLANCES[0] :].split()
    word = words[-1].removesuffix(".") if len(words) > 1 else ""
    if word.isascii() and word.isdigit():
        return word  # the text ends in a plain integer: the usual case
    end = max(text.rfind(digit) for digit in "0123456789") + 1
    if not end:
        raise NoAnswerError("no number")
    found = None
    for width in _GLANCES:
        found = found or _last_value(text, end, width)
    if found is None:
        raise NoAnswerError("no number of a readable length that stands alone at the end")
    if found["compound"]:
        raise NoAnswerError("the last number is part of an expression")
    value = found["value"]
    return value if "frac" in value else value.translate(_CURRENCY)


def _last_value(text: str, end: int, width: int) -> re.Match[str] | None:
    """Returns the last number in the `width` characters before `end`, unless it may begin before them."""
    begin = max(0, end - width)
    found = None
    for lexeme in _LEXEME.finditer(text, begin, end + _GLANCES[0]):
        if lexeme["value"]:
            found = lexeme
    return None if found is None or found.start() == begin > 0 else found


_EXTRACTIONS: dict[str, Callable[[str], str]] = {
    "boxed": _boxed,
    "last_number": _last_number,
    "hash": _hashed,
}
