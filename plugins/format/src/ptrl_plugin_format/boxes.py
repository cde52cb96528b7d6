r"""Finds `\boxed{...}` in text, in one pass and linear time.

Braces count as LaTeX counts them: `\{` and `\}` are characters, not delimiters, and `\\boxed{` is a line
break followed by a word, not a box. White space may stand between `\boxed` and its brace.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from typing import NamedTuple

_COMMAND = r"\boxed"
_TOKEN = re.compile(r"\\boxed\s*+\{|\\[\\{}]|[{}]")
_SIMPLE = re.compile(r"\\boxed\{([^{}\\]*+)\}")
_FILLING = re.compile(r"\\boxed|\\text[a-z]*+|\\[,;:!() \[\]]|[{}$\s]")


class Box(NamedTuple):
    r"""One box of a text, as offsets into it.

    Args:
        start: Where its `\boxed` begins.
        inside: Where its content begins.
        end: Offset just past its closing brace; -1 when it is never closed.
    """

    start: int
    inside: int
    end: int

    @property
    def closed(self) -> bool:
        """Whether the closing brace is there."""
        return self.end >= 0

    def content(self, text: str) -> str:
        """Returns what stands between the braces; to the end of the text when it is never closed."""
        return text[self.inside : self.end - 1] if self.closed else text[self.inside :]


def find_boxes(text: str) -> Iterator[Box]:
    """Yields the outermost boxes of `text` in their order.

    A box inside a closed box belongs to it and is not listed; a box after an opening that is never closed
    stands for itself. Time and memory are linear in the text: one pass, 32 bytes per box.
    """
    first = text.find(_COMMAND)
    if first < 0:
        return
    alone = _SIMPLE.match(text, first)
    if alone and text.find(_COMMAND, first + 1) < 0 and text[first - 1 : first] != "\\":
        yield Box(first, alone.start(1), alone.end())  # one box without braces in it: the usual case
        return
    past = 0
    for start, inside, end in _pair_braces(text, first):
        if start >= past:
            yield Box(start, inside, end)
            past = max(past, end)


def last_box(text: str) -> Box | None:
    """Returns the last outermost box, closed or not; None when there is none."""
    last = None
    for box in find_boxes(text):
        last = box
    return last


def is_blank(content: str) -> bool:
    """Whether nothing visible stands in `content` but braces, spacing, math delimiters and empty boxes."""
    if content[:1].isalnum():
        return False
    return not is_visible(content) or not is_visible(_FILLING.sub("", content))


def is_visible(text: str) -> bool:
    """Whether `text` has a visible character; white space and zero-width characters are not."""
    if text[:1].isalnum():  # nearly always, and ten times faster
        return True
    return any(character.isprintable() and not character.isspace() for character in text)


def _pair_braces(text: str, first: int) -> Iterator[tuple[int, int, int]]:
    """Yields every box's offsets, nested ones too, by its start; braces before `first` cannot matter."""
    starts, insides, ends, depths = array("q"), array("q"), array("q"), array("q")
    opened: list[int] = []  # boxes still open, as positions in the arrays
    depth = 0
    begin = len(text[:first].rstrip("\\"))  # an escaped backslash before `\boxed` makes it a word
    for token in _TOKEN.finditer(text, begin):
        word = token[0]
        if word == "{":
            depth += 1
        elif word == "}":
            depth = max(depth - 1, 0)
            if opened and depths[opened[-1]] == depth:
                ends[opened.pop()] = token.end()
        elif word.startswith(_COMMAND):
            opened.append(len(starts))
            starts.append(token.start())
            insides.append(token.end())
            ends.append(-1)
            depths.append(depth)
            depth += 1
    return zip(starts, insides, ends, strict=True)
