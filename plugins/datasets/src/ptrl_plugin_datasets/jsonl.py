"""`datasets.jsonl`: tasks from JSON lines files."""

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator, model_validator

from ptrl.core import Environment, Split, TaskSource
from ptrl_plugin_datasets.mapping import ColumnMapping, RowMapping
from ptrl_plugin_datasets.source import Limits, RowTasks, read_rows

Plain = str | int | float | bool | None


class JsonLines(Environment):
    """Single-turn tasks from `.jsonl` or `.jsonl.gz` files, by a mapping of columns.

    Prompts that differ only in case and white space are one prompt: it is taken once, and it belongs to one split.
    """

    class Config(Environment.Config):
        """Options of datasets.jsonl."""

        path: str = Field(min_length=1)
        """File or glob, relative to the current folder."""

        test_path: str | None = None
        """File or glob of the test split; a training prompt that is also in it is left out."""

        test_share: float = Field(default=0.1, ge=0, lt=1)
        """Share of prompts held out for testing, where there is no `test_path`."""

        columns: ColumnMapping = ColumnMapping()
        """Which column is what: `prompt`, `answer`, `key`, `difficulty`, `tags`, `system`, `demonstration`."""

        system: str | None = None
        """System prompt of every task."""

        template: str | None = None
        """The user's message with columns in braces, such as `{question} Answer in a box.`"""

        answer_pattern: str | None = None
        """Regular expression with one group: the answer within the answer column, such as `#### (.+)`."""

        where: Mapping[str, Plain | list[Plain]] = Field(default_factory=dict)
        """Only rows whose columns have these values, or one of these."""

        min_chars: int = Field(default=1, ge=0)
        """Fewest characters of a prompt."""

        max_chars: int | None = Field(default=None, ge=1)
        """Most characters of a prompt."""

        limit: int | None = Field(default=None, ge=1)
        """At most this many tasks per split."""

        on_bad_line: Literal["error", "skip"] = "error"
        """What to do with a line that is not JSON or lacks a column; skipped lines are counted and logged."""

        seed: int = 0
        """Draws another share of prompts for testing."""

        @field_validator("answer_pattern")
        @classmethod
        def _check_pattern(cls, pattern: str | None) -> str | None:
            if pattern is None:
                return None
            try:
                groups = re.compile(pattern).groups
            except re.error as error:
                raise ValueError(f"not a regular expression: {error}") from None
            if groups != 1:
                raise ValueError(f"expected one group around the answer; found {groups}")
            return pattern

        @model_validator(mode="after")
        def _check_sizes(self) -> "JsonLines.Config":
            if self.max_chars is not None and self.max_chars < self.min_chars:
                raise ValueError("max_chars is less than min_chars")
            if self.test_path is None and self.test_share == 0:
                raise ValueError("give a test_path or a test_share above 0; evaluation needs held-out tasks")
            return self

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._splits: dict[Split, RowTasks] = {}

    def tasks(self, split: Split) -> TaskSource:
        """Returns the tasks of a split; the files are read through once, for both.

        Raises:
            DataSetError: When a file or line cannot be used.
        """
        if not self._splits:
            self._splits = self._read()
        return self._splits[split]

    def _read(self) -> dict[Split, RowTasks]:
        config = self.config
        mapping = RowMapping(
            config.columns,
            system=config.system,
            template=config.template,
            answer_pattern=config.answer_pattern,
        )
        limits = Limits(
            where=config.where,
            min_chars=config.min_chars,
            max_chars=config.max_chars,
            skip_bad=config.on_bad_line == "skip",
            seed=config.seed,
        )
        if config.test_path is None:
            found = read_rows(config.path, mapping, limits)
            train, test = found.divided(config.test_share)
        else:
            test = read_rows(config.test_path, mapping, limits)
            train = read_rows(config.path, mapping, limits).without(test)
        return {"train": train.tasks(mapping, config.limit), "test": test.tasks(mapping, config.limit)}

    def close(self) -> None:
        """Closes the files."""
        for source in self._splits.values():
            source.close()
