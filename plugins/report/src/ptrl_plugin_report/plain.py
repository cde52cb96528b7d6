"""Plain data read from files that may be torn or of another make: what has not the expected form is missing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

LARGEST = 1e200
"""Numbers beyond it are of no use in a report, and would overflow its arithmetic."""

SMALLEST = 1e-200
"""Numbers nearer to 0 are taken for it, since differences of them would underflow."""


def parse(line: bytes) -> Row | None:
    """Returns a line's JSON object, or None."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def table(data: Row, *keys: str) -> Row:
    """Returns a nested table; an empty one where there is none."""
    found: Any = data
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def tables(value: Any) -> list[Row]:
    """Returns the tables of a list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, Sequence) else []


def as_number(value: Any) -> float | None:
    """Returns a finite number, or None for everything else that a file may hold in its place."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    if not (math.isfinite(found) and abs(found) <= LARGEST):
        return None
    return found if abs(found) >= SMALLEST else 0.0
