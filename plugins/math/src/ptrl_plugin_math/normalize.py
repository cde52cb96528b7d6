r"""Brings an answer, the candidate's or the reference's, into the form that is compared.

An answer is a number, compared exactly, or else a text, compared without regard to case, the width of white
space and the markup around it. Unicode is composed (NFC) but never folded to look-alikes: NFKC would read 5²
as 52.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

from ptrl_plugin_format import find_boxes
from ptrl_plugin_math.number import parse_number

_TEXT_COMMAND = re.compile(r"\\(?:text(?:bf|it|rm|tt)?|math(?:bf|it|rm))\s*+\{([^{}]*+)\}")
_LAYERS = 8
_DELIMITERS = ((r"\(", r"\)"), (r"\[", r"\]"), ("$$", "$$"), ("$", "$"))


@lru_cache(maxsize=2048)
def normalize(answer: str) -> Fraction | str:
    """Returns the number that `answer` writes, or its normalized text, which may be empty.

    Raises:
        OverLimitError: When it is a number beyond the limits of `parse_number`.
    """
    bare = strip_markup(answer)
    number = parse_number(bare)
    if number is not None:
        return number
    return " ".join(unicodedata.normalize("NFC", bare).casefold().split())


def strip_markup(answer: str) -> str:
    r"""Removes what stands around an answer: math delimiters, `\boxed`, `\text`, currency sign, full stop.

    At most `_LAYERS` layers are opened, so that the time is linear.
    """
    for _ in range(_LAYERS):
        bare = _without_outer(answer.strip())
        if bare == answer:
            break
        answer = bare
    return answer.strip()


def _without_outer(text: str) -> str:
    """Removes one layer of markup, if there is one."""
    text = text.removesuffix(".").rstrip()
    for opening, closing in _DELIMITERS:
        if len(text) >= len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
            return text[len(opening) : -len(closing)]
    if match := _TEXT_COMMAND.fullmatch(text):
        return match[1]
    if text.startswith(r"\boxed") and (box := next(find_boxes(text), None)) and box.end == len(text):
        return box.content(text)
    return text.removeprefix("\\").removeprefix("$") if text.startswith(("$", r"\$")) else text
