"""From a row of any data set to a task: which column is what."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel, ConfigDict

from ptrl.core import Message, Task, did_you_mean
from ptrl_plugin_datasets.errors import DataSetError

FIELD = re.compile(r"\{([^{}]+)\}")
ROLES = ("system", "user", "assistant", "tool")


class ColumnMapping(BaseModel):
    """Names of columns."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    prompt: str = "prompt"
    """Plain text, or chat messages (a list of {role, content})."""

    answer: str | None = "answer"
    """What rewards judge by; null where there is none."""

    key: str | None = None
    """A unique name of each row; file and line by default."""

    difficulty: str | None = None
    """A number, larger is harder."""

    tags: str | None = None
    """A text, or a list of texts."""

    system: str | None = None
    """A system prompt of the row's own."""

    demonstration: str | None = None
    """A worked answer for supervised stages: text, or messages that begin with the assistant's."""


class RowMapping:
    """Makes tasks of rows.

    Args:
        columns: Which column is what.
        system: System prompt of every task.
        template: The user's message, with columns in braces; the prompt column by default.
        answer_pattern: A regular expression whose one group is the answer within the answer column.
    """

    def __init__(
        self,
        columns: ColumnMapping,
        *,
        system: str | None = None,
        template: str | None = None,
        answer_pattern: str | None = None,
    ) -> None:
        self.columns = columns
        self._system = system
        self._template = template
        self._answer_pattern = re.compile(answer_pattern) if answer_pattern else None

    def prompt(self, row: Mapping[str, Any], where: str) -> tuple[Message, ...]:
        """Returns a row's messages.

        Raises:
            DataSetError: When a column is missing, or holds no text and no messages.
        """
        system = self._system
        if self.columns.system is not None:
            system = text_of(row, self.columns.system, where)
        if self._template is not None:
            given: Any = FIELD.sub(lambda match: text_of(row, match[1], where), self._template)
        else:
            given = column(row, self.columns.prompt, where)
        messages = messages_of(given, "user", f"{where}: column {self.columns.prompt!r}")
        if system is not None and messages[0]["role"] != "system":
            messages = ({"role": "system", "content": system}, *messages)
        return messages

    def task(self, row: Mapping[str, Any], name: str, where: str) -> Task:
        """Returns a row's task.

        Args:
            row: The row.
            name: Its key where no column gives one.
            where: File and line, for messages.

        Raises:
            DataSetError: When a column is missing or holds something else.
        """
        columns = self.columns
        demonstration: tuple[Message, ...] = ()
        if columns.demonstration is not None:
            given = column(row, columns.demonstration, where)
            demonstration = messages_of(given, "assistant", f"{where}: column {columns.demonstration!r}")
        return Task(
            key=self.key(row, name, where),
            messages=self.prompt(row, where),
            reference=self._reference(row, where),
            difficulty=self.difficulty(row, where),
            tags=self.tags(row, where),
            demonstration=demonstration,
        )

    def key(self, row: Mapping[str, Any], name: str, where: str) -> str:
        """Returns a row's key."""
        return name if self.columns.key is None else text_of(row, self.columns.key, where)

    def difficulty(self, row: Mapping[str, Any], where: str) -> float | None:
        """Returns a row's difficulty; None where the mapping names no column or the row has null."""
        name = self.columns.difficulty
        value = None if name is None else column(row, name, where)
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.inf
        if math.isinf(number):
            raise DataSetError(f"{where}: column {name!r} holds {str(value)[:80]}; difficulty is a finite number")
        return None if math.isnan(number) else number

    def tags(self, row: Mapping[str, Any], where: str) -> tuple[str, ...]:
        """Returns a row's tags."""
        if self.columns.tags is None:
            return ()
        value = column(row, self.columns.tags, where)
        if value is None:
            return ()
        return tuple(str(tag) for tag in value) if isinstance(value, list) else (str(value),)

    def _reference(self, row: Mapping[str, Any], where: str) -> Any:
        if self.columns.answer is None:
            return None
        value = column(row, self.columns.answer, where)
        if self._answer_pattern is None:
            return value
        found = self._answer_pattern.search(str(value))
        if found is None or found[1] is None:
            raise DataSetError(
                f"{where}: answer_pattern matches nothing in the column {self.columns.answer!r}: {str(value)[-60:]!r}"
            )
        return found[1].strip()


def column(row: Mapping[str, Any], name: str, where: str) -> Any:
    """Returns a column of a row.

    Raises:
        DataSetError: When there is none; the nearest names are said.
    """
    if name not in row:
        raise DataSetError(f"{where}: there is no column {name!r}; {did_you_mean(name, row)}")
    return row[name]


def text_of(row: Mapping[str, Any], name: str, where: str) -> str:
    """Returns a column as text; a number is written out.

    Raises:
        DataSetError: When it is neither.
    """
    value = column(row, name, where)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise DataSetError(f"{where}: column {name!r} holds a {type(value).__name__}; expected text")
    return str(value)


def messages_of(value: Any, role: str, where: str) -> tuple[Message, ...]:
    """Returns chat messages as they are, and a text as one message of a role.

    Raises:
        DataSetError: When it is neither, or there is nothing in it.
    """
    if isinstance(value, str) and value.strip():
        return (cast(Message, {"role": role, "content": value}),)
    if isinstance(value, list) and value:
        return tuple(_message(item, where) for item in cast(Sequence[Any], value))
    what = "is empty" if value in ("", []) or isinstance(value, str) else f"holds a {type(value).__name__}"
    raise DataSetError(f"{where} {what}; expected text or a list of {{role, content}}")


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, dict) or item.get("role") not in ROLES or not isinstance(item.get("content"), str):
        raise DataSetError(f"{where}: {str(item)[:80]} is no message; expected role ({', '.join(ROLES)}) and content")
    return cast(Message, {"role": item["role"], "content": item["content"]})
