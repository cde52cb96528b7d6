"""Task sources: any iterable becomes an indexed one by being spooled to a file."""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from ptrl.core.contracts.environment import Columns, TaskSource
from ptrl.core.errors import EpisodeError
from ptrl.core.records import Task

MAXIMUM_TASKS = 10_000_000
"""Tasks of one iterable: beyond them it is taken for endless."""


class SpooledTasks(TaskSource):
    """Tasks of an iterable, written once to a JSON lines file and read back by offset.

    Args:
        path: The spool file.
        offsets: Byte offset of each task, and the end of the file.
        columns: What a sampler may know of them.
    """

    def __init__(self, path: Path, offsets: array[int], columns: Columns) -> None:
        self.path = path
        self._offsets = offsets
        self._columns = columns
        self._file = path.open("rb", buffering=0)

    def __len__(self) -> int:
        """Number of tasks."""
        return len(self._offsets) - 1

    def task(self, index: int) -> Task:
        """Returns a task by its index. Safe from several threads."""
        start, end = self._offsets[index], self._offsets[index + 1]
        return task_from_plain(json.loads(os.pread(self._file.fileno(), end - start, start)))

    def columns(self) -> Columns:
        """Returns keys, difficulty and tags, which stay in memory."""
        return self._columns


def as_source(tasks: TaskSource | Iterable[Task], path: Path, label: str) -> TaskSource:
    """Returns a task source as it is, and any other iterable spooled to `path`.

    Raises:
        EpisodeError: When a task cannot be written, a key repeats, or there is no task.
    """
    if isinstance(tasks, TaskSource):
        return tasks
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")  # other workers may read the file that stands
    try:
        with temporary.open("wb") as file:
            offsets, columns = _spool(tasks, file, label)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    repeated = next((key for key, count in Counter(columns.keys).items() if count > 1), None)
    if repeated is not None:
        raise EpisodeError(f"{label}: the key {repeated!r} is used by more than one task; keys are unique")
    return SpooledTasks(path, offsets, columns)


def _spool(tasks: Iterable[Task], file: IO[bytes], label: str) -> tuple[array[int], Columns]:
    offsets = array("q", [0])
    keys: list[str] = []
    difficulty: list[float | None] = []
    tags: list[tuple[str, ...]] = []
    for number, task in enumerate(tasks):
        if number == MAXIMUM_TASKS:
            raise EpisodeError(f"{label}: more than {MAXIMUM_TASKS:,} tasks; return a TaskSource, which indexes them")
        try:
            line = json.dumps(task_to_plain(task), ensure_ascii=True).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise EpisodeError(
                f"{label}: task {number} cannot be written as JSON ({error}); keep messages, reference"
                " and info plain data, or return a TaskSource"
            ) from error
        file.write(line)
        offsets.append(offsets[-1] + len(line))
        keys.append(task.key)
        difficulty.append(task.difficulty)
        tags.append(task.tags)
    return offsets, Columns(keys=keys, difficulty=difficulty, tags=tags)


def task_to_plain(task: Task) -> dict[str, Any]:
    """Returns a task as plain data."""
    return {
        "key": task.key,
        "domain": task.domain,
        "messages": list(task.messages),
        "reference": task.reference,
        "difficulty": task.difficulty,
        "tags": list(task.tags),
        "info": dict(task.info),
        "demonstration": list(task.demonstration),
    }


def task_from_plain(data: dict[str, Any]) -> Task:
    """Returns the task that `task_to_plain` wrote."""
    return Task(
        key=data["key"],
        domain=data.get("domain", ""),
        messages=tuple(data["messages"]),
        reference=data.get("reference"),
        difficulty=data.get("difficulty"),
        tags=tuple(data.get("tags", ())),
        info=data.get("info", {}),
        demonstration=tuple(data.get("demonstration", ())),
    )
