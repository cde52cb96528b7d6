"""Untrusted text and numbers as a reader may see them. Escaping is the template's work; visibility is done here."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import dataclass
from typing import Any

from ptrl_plugin_report.plain import as_number

TEXT_LIMIT = 4000
"""Characters of one message that are shown."""


@dataclass(frozen=True, slots=True)
class Clip:
    """A text as it is shown: whole, or its beginning and its end, where answers stand.

    Args:
        head: The text, or its beginning.
        left_out: Number of characters that are not shown.
        tail: Its end, where some are not.
    """

    head: str
    left_out: int = 0
    tail: str = ""


class _Visible(dict[int, str]):
    """A table for `str.translate` that names each character that cannot be seen, hides or turns text."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        shown = character in "\n\t" or character.isprintable() or unicodedata.category(character) == "Zs"
        self[code] = character if shown else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
        return self[code]


_VISIBLE = _Visible()


def visible(text: str) -> str:
    """Returns a text with its invisible characters named: null bytes, surrogates, overrides of direction."""
    return text.translate(_VISIBLE)


def clip(value: Any, limit: int = TEXT_LIMIT) -> Clip:
    """Returns any plain data as text of at most `limit` characters, of which a quarter is its end."""
    text = _as_text(value)
    if len(text) <= limit:
        return Clip(visible(text))
    tail = limit // 4
    return Clip(visible(text[: limit - tail]), len(text) - limit, visible(text[len(text) - tail :]))


def shown(value: Any, limit: int = 200) -> str:
    """Returns any plain data as short text; an ellipsis stands for what is cut."""
    text = _as_text(value)
    return visible(text) if len(text) <= limit else visible(text[: limit - 1]) + "…"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def percent(value: Any) -> str:
    """Returns a share in percent; a dash where there is none."""
    found = as_number(value)
    return "–" if found is None else f"{found:.1%}"


def number(value: Any) -> str:
    """Returns a number in three digits or, from 1,000, as a whole; a dash where there is none."""
    found = as_number(value)
    if found is None:
        return "–"
    return f"{found:,.0f}" if 1000 <= abs(found) < 1e9 else _minus(f"{found:.3g}")


def compact(value: float) -> str:
    """Returns a number as an axis shows it: 12000 as 12k."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if factor <= abs(value) < factor * 1e4:
            return _minus(f"{value / factor:g}") + letter
    return _minus(f"{value:g}")


def points(value: float | None) -> str:
    """Returns a difference of shares in percentage points with its sign; a dash where there is none."""
    return "–" if value is None else _minus(f"{100 * value:+.1f}")


def _minus(text: str) -> str:
    return text.replace("-", "−", 1) if text.startswith("-") else text


def duration(value: Any) -> str:
    """Returns seconds as a reader says them: `42 s`, `3 min 05 s`, `2 h 10 min`."""
    found = as_number(value)
    if found is None or found < 0:
        return "–"
    if found < 10:
        return f"{found:.1f} s"
    seconds = round(found)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60:02d} min"
