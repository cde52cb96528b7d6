"""Text of plugins, configs and policies, made safe to print: it must not drive the terminal.

What rich prints of it goes in a `rich.text.Text`, in which nothing is markup.
"""

from __future__ import annotations

import re
from typing import IO

ESCAPE_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, screen
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x1b\x07\x9c]*(?:\x07|\x9c|\x1b\\)"  # OSC: title, clipboard
)

CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 but for tab and newline
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"  # what turns or hides the text around it
)

SURROGATES = re.compile("[\ud800-\udfff]")


def terminal_safe(text: str, *, lines: bool = False, limit: int | None = None) -> str:
    """Returns text without terminal sequences, control and direction characters.

    Args:
        text: Any text.
        lines: Keep newlines and tabs; without it all white space becomes single spaces.
        limit: Longest result; what is cut is shown by an ellipsis.
    """
    if limit is not None:
        text = text[: limit * 8]
    text = SURROGATES.sub("\ufffd", CONTROLS.sub("", ESCAPE_SEQUENCES.sub("", text)))
    if not lines:
        text = " ".join(text.split())
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    return text


def encodable(*streams: IO[str]) -> None:
    """Lets a stream print a replacement for what its encoding lacks, instead of ending the program."""
    for stream in streams:
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")
