"""The helper process of data sets whose items depend on the process: positions in, items out, by line.

It ends when its standard input does, so it never outlives the process that asked.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from ptrl_plugin_reasoning_gym.generation import Generator, ItemError, LocalGenerator
from ptrl_plugin_reasoning_gym.library import DataSetSpec, ReasoningGymError
from ptrl_plugin_reasoning_gym.packing import pack


def answer(generator: Generator, position: int) -> dict[str, Any]:
    """Returns the reply to one request: the packed item, or the error in words."""
    try:
        return {"item": pack(generator.item(position))}
    except ReasoningGymError as error:
        return {"error": str(error), "of_item": isinstance(error, ItemError)}


def main() -> None:
    """Answers requests until there are no more."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a data set prints must not look like a reply
    generator = LocalGenerator(DataSetSpec.of_key(sys.argv[1]), int(sys.argv[2]))
    for line in sys.stdin:
        replies.write(json.dumps(answer(generator, int(line))) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
