"""Splits that share no prompt: a prompt's text alone decides where it belongs."""

import hashlib
import json
import re
from collections.abc import Sequence

from ptrl.core import Message

SPACE = re.compile(r"\s+")


def fingerprint(messages: Sequence[Message], seed: int) -> bytes:
    """Returns 16 bytes of a prompt's normalized text: case and white space do not count.

    Args:
        messages: The prompt.
        seed: Draws other splits.
    """
    said = [[message["role"], SPACE.sub(" ", message["content"]).strip().casefold()] for message in messages]
    text = json.dumps([seed, said], ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def is_held_out(prompt: bytes, share: float) -> bool:
    """Tells whether a prompt belongs to the test split, which holds about `share` of all prompts."""
    return int.from_bytes(prompt[:8]) < share * 2**64
