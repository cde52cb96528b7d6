"""What the policy reads: the data set's question, or a template filled from the item."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ptrl_plugin_reasoning_gym.library import ReasoningGymError, choices

_FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_POSITIONS = ("source_index", "source_dataset")
"""Where an item came from, not what it asks; a prompt made of it would hide that two tasks are one."""

Prompt = Callable[[Mapping[str, Any]], str]


def question(item: Mapping[str, Any]) -> str:
    """The default prompt: the data set's own question."""
    text: str = item["question"]
    return text


def prompt_of(template: str | None) -> Prompt:
    """Returns what renders an item: plain substitution of `{question}` and metadata fields.

    Other braces stay as they are. Nothing is looked up inside a value, and values are not filled again.
    """
    if template is None:
        return question

    def render(item: Mapping[str, Any]) -> str:
        return _FIELD.sub(lambda match: _text(_field(item, match[1])), template)

    return render


def _field(item: Mapping[str, Any], name: str) -> Any:
    if name == "question":
        return item["question"]
    fields = {key: value for key, value in item["metadata"].items() if key not in _POSITIONS}
    if name not in fields:
        known = ["question", *fields]
        source = item["metadata"].get("source_dataset", "this data set")
        raise ReasoningGymError(f"prompt: {source} has no field {name!r}; {choices(name, known)}")
    return fields[name]


def _text(value: Any) -> str:
    """A list becomes its elements with commas between."""
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value)
    return str(value)
