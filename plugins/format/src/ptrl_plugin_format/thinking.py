"""Tells what a completion shows from what it thinks."""

from __future__ import annotations

_OPEN, _CLOSE = "<think>", "</think>"


def after_thinking(text: str) -> str:
    """Returns the part of a completion that is its answer.

    That is the text after the last `</think>`, up to a `<think>` that is never closed; the whole text when it
    has neither tag. A completion that was cut while it thought has answered nothing.
    """
    closed = text.rfind(_CLOSE)
    begin = 0 if closed < 0 else closed + len(_CLOSE)
    end = text.find(_OPEN, begin)
    return text[begin:] if end < 0 else text[begin:end]
