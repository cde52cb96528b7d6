"""Rows that can be used, and the task source over them."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ptrl.core import Columns, Task, TaskSource
from ptrl_plugin_datasets.errors import DataSetError
from ptrl_plugin_datasets.files import LineFile, Rows, expand, parse
from ptrl_plugin_datasets.mapping import RowMapping, column
from ptrl_plugin_datasets.splits import fingerprint, is_held_out

LOG = logging.getLogger(__name__)

SHOWN = 5
"""So many skipped lines are logged one by one; all are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Which rows are taken.

    Args:
        where: Values that columns must have.
        min_chars: Fewest characters of a prompt.
        max_chars: Most characters of a prompt; None for no limit.
        skip_bad: Whether a bad line is skipped, instead of being an error.
        seed: Draws other splits.
    """

    where: Mapping[str, Any] = field(default_factory=dict)
    min_chars: int = 1
    max_chars: int | None = None
    skip_bad: bool = False
    seed: int = 0

    def admit(self, row: Mapping[str, Any], characters: int, where: str) -> bool:
        """Tells whether a row is taken."""
        for name, wanted in self.where.items():
            value = column(row, name, where)
            if value not in wanted if isinstance(wanted, (list, tuple)) else value != wanted:
                return False
        return characters >= self.min_chars and (self.max_chars is None or characters <= self.max_chars)


class FoundRows:
    """Rows with what a sampler may know of them; prompts are kept as fingerprints only."""

    def __init__(self, rows: Rows, files: Sequence[LineFile]) -> None:
        self.rows = rows
        self.files = list(files)
        self.prompts: list[bytes] = []
        self.lines: list[bytes] = []
        self.keys: list[str] = []
        self.difficulty: list[float | None] = []
        self.tags: list[tuple[str, ...]] = []

    def keep(self, numbers: Sequence[int]) -> "FoundRows":
        """Returns some of the rows."""
        kept = FoundRows(self.rows.keep(list(numbers)), self.files)
        kept.prompts = [self.prompts[number] for number in numbers]
        kept.lines = [self.lines[number] for number in numbers]
        kept.keys = [self.keys[number] for number in numbers]
        kept.difficulty = [self.difficulty[number] for number in numbers]
        kept.tags = [self.tags[number] for number in numbers]
        return kept

    def divided(self, test_share: float) -> tuple["FoundRows", "FoundRows"]:
        """Returns training and test rows: a prompt's text decides."""
        held_out = [is_held_out(prompt, test_share) for prompt in self.prompts]
        return (
            self.keep([number for number, out in enumerate(held_out) if not out]),
            self.keep([number for number, out in enumerate(held_out) if out]),
        )

    def without(self, others: "FoundRows") -> "FoundRows":
        """Returns the rows whose prompts are not among the others'."""
        taken = set(others.prompts)
        return self.keep([number for number, prompt in enumerate(self.prompts) if prompt not in taken])

    def tasks(self, mapping: RowMapping, limit: int | None) -> "RowTasks":
        """Returns the task source over the rows, or over the first of them."""
        found = self if limit is None else self.keep(range(min(limit, len(self.rows))))
        return RowTasks(found, mapping)


def read_rows(pattern: str, mapping: RowMapping, limits: Limits) -> FoundRows:
    """Reads files through once and returns the rows that can be used, each prompt once.

    Raises:
        DataSetError: When there is no file or no row, a line is bad, or two rows have one key.
    """
    files = [LineFile(path) for path in expand(pattern)]
    found = FoundRows(Rows(files), files)
    seen: set[bytes] = set()
    skipped = repeated = 0
    for file_number, file in enumerate(files):
        for line_number, offset, line in file.lines():
            where = f"{file.path}, line {line_number}"
            try:
                taken = _take(found, line, found.rows.name_of(file_number, line_number), where, mapping, limits, seen)
            except DataSetError as error:
                if not limits.skip_bad:
                    hint = 'set on_bad_line = "skip" to leave such lines out'
                    raise DataSetError(f"{error} — {hint}") from None
                skipped += 1
                if skipped <= SHOWN:
                    LOG.warning("skipped: %s", error)
                continue
            if taken is False:
                repeated += 1
            elif taken:
                found.rows.add(file_number, line_number, offset, len(line))
    if skipped or repeated:
        LOG.warning("%s: %d bad lines skipped, %d repeated prompts left out", pattern, skipped, repeated)
    _check(found, pattern, skipped)
    return found


def _take(
    found: FoundRows,
    line: bytes,
    name: str,
    where: str,
    mapping: RowMapping,
    limits: Limits,
    seen: set[bytes],
) -> bool | None:
    """Notes a row; returns None where a filter leaves it out, and False where its prompt was there before."""
    row = parse(line, where)
    task = mapping.task(row, name, where)
    if not limits.admit(row, sum(len(message["content"]) for message in task.messages), where):
        return None
    prompt = fingerprint(task.messages, limits.seed)
    if prompt in seen:
        return False
    seen.add(prompt)
    found.prompts.append(prompt)
    found.lines.append(hashlib.blake2b(line.strip(), digest_size=8).digest())
    found.keys.append(task.key)
    found.difficulty.append(task.difficulty)
    found.tags.append(task.tags)
    return True


def _check(found: FoundRows, pattern: str, skipped: int) -> None:
    if not len(found.rows):
        why = f"all {skipped} lines are bad" if skipped else "no line is left by where, min_chars and max_chars"
        raise DataSetError(f"{pattern}: there is no task in it: {why}")
    if len(set(found.keys)) != len(found.keys):
        first: dict[str, int] = {}
        for number, key in enumerate(found.keys):
            if key in first:
                places = f"{found.rows.where(first[key])} and {found.rows.where(number)}"
                raise DataSetError(f"columns.key: {key!r} stands in {places}; keys are unique")
            first[key] = number


class RowTasks(TaskSource):
    """Tasks of rows, read from their files when they are asked for.

    Args:
        found: The rows.
        mapping: Makes tasks of them.
    """

    def __init__(self, found: FoundRows, mapping: RowMapping) -> None:
        self._found = found
        self._mapping = mapping

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self._found.rows)

    def task(self, index: int) -> Task:
        """Returns the task of a row."""
        rows = self._found.rows
        return self._mapping.task(rows.read(index), rows.name(index), rows.where(index))

    def columns(self) -> Columns:
        """Returns keys, difficulty and tags; the fingerprint is made of keys, prompts and whole lines."""
        digest = hashlib.sha256()
        for key, prompt, line in zip(self._found.keys, self._found.prompts, self._found.lines, strict=True):
            digest.update(key.encode("utf-8", "surrogatepass") + b"\0" + prompt + line)
        return Columns(
            keys=self._found.keys,
            difficulty=self._found.difficulty,
            tags=self._found.tags,
            fingerprint=digest.hexdigest(),
        )

    def close(self) -> None:
        """Closes the files."""
        for file in self._found.files:
            file.close()
