"""Where in a completion the answer stands."""

from __future__ import annotations

from typing import Literal

ExtractionPolicy = Literal["tag", "boxed", "whole"]

_OPEN, _CLOSE, _BOX = "<answer>", "</answer>", "\\boxed{"


def extract(text: str, policy: ExtractionPolicy) -> str | None:
    """Returns the answer without surrounding white space, empty in an empty tag; None when there is none.

    Linear in the text's length, whatever the text is.
    """
    if policy == "whole":
        return text.strip() or None
    found = _last_tag(text) if policy == "tag" else _last_box(text)
    return None if found is None else found.strip()


def missing(policy: ExtractionPolicy) -> str:
    """Returns why there is no answer."""
    if policy == "whole":
        return "no answer: the completion is empty"
    place = f"{_OPEN}...{_CLOSE}" if policy == "tag" else f"{_BOX}...}}"
    return f"no answer: no text in {place}"


def _last_tag(text: str) -> str | None:
    end = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, end) if end >= 0 else -1
    return text[start + len(_OPEN) : end] if start >= 0 else None


def _last_box(text: str) -> str | None:
    start = text.rfind(_BOX)
    if start < 0:
        return None
    depth = 1
    for position in range(start + len(_BOX), len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + len(_BOX) : position]
    return None
