"""What a run folder holds, as far as it is there: a run that still goes on, or was killed, gives what it has."""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ptrl.core import RunFolderError
from ptrl.core.run_folder import RunFolder

Row = dict[str, Any]
LINE_LIMIT = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run's files as plain data.

    Args:
        name: Its name.
        folder: Where it is.
        config: The resolved config.
        lock: What was installed.
        summary: What it reached; empty while it goes on.
        metrics: One row per step.
        evaluations: One row per evaluation.
        rollouts: Chosen rollouts by the part of the run that they are from.
    """

    name: str
    folder: Path
    config: Row
    lock: Row = field(default_factory=dict)
    summary: Row = field(default_factory=dict)
    metrics: Sequence[Row] = ()
    evaluations: Sequence[Row] = ()
    rollouts: dict[str, list[Row]] = field(default_factory=dict)

    @property
    def domains(self) -> list[str]:
        """Names of the domains, in the config's order."""
        return list(self.config.get("domains", {}))


def read_run(path: Path, per_domain: int) -> Run:
    """Reads a run folder.

    Args:
        path: The folder.
        per_domain: How many rollouts of each domain to take from each part of the run.

    Raises:
        RunFolderError: When it is no run folder, or its config cannot be read.
    """
    folder = RunFolder.open(path)
    config = folder.read_json(folder.config)
    if not isinstance(config, dict) or not isinstance(config.get("run"), dict):
        raise RunFolderError(f"{folder.config} is not the config of a run")
    return Run(
        name=str(config["run"].get("name", path.name)),
        folder=path,
        config=config,
        lock=_optional(folder, folder.lock),
        summary=_optional(folder, folder.summary),
        metrics=list(_rows(folder.metrics)),
        evaluations=list(_rows(folder.evaluations)),
        rollouts=_chosen_rollouts(folder.rollouts, list(config.get("domains", {})), per_domain),
    )


def _optional(folder: RunFolder, path: Path) -> Row:
    try:
        found = folder.read_json(path)
    except RunFolderError:
        return {}
    return found if isinstance(found, dict) else {}


def _rows(path: Path) -> Iterator[Row]:
    """Yields a file's whole lines; a last line that was cut short is left out."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        row = _parse(line)
        if row is not None and isinstance(row.get("step"), int):
            yield row


def _parse(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _chosen_rollouts(folder: Path, domains: Sequence[str], per_domain: int) -> dict[str, list[Row]]:
    """Returns a few rollouts of each domain from the first step, the last, and the last evaluation."""
    steps = sorted(folder.glob("step-*.jsonl.gz"))
    evaluations = sorted(folder.glob("evaluation-*-greedy.jsonl.gz")) or sorted(folder.glob("evaluation-*"))
    parts: dict[str, Path] = {}
    if evaluations:
        parts["last evaluation"] = evaluations[-1]
    if steps:
        parts["first training step"] = steps[0]
    if len(steps) > 1:
        parts["last training step"] = steps[-1]
    return {name: _few(path, domains, per_domain) for name, path in parts.items()}


def _few(path: Path, domains: Sequence[str], per_domain: int) -> list[Row]:
    """Returns some rollouts of each domain, unsolved and solved in turn."""
    found: dict[tuple[str, bool], list[Row]] = {}
    for row in _compressed_rows(path):
        key = (str(row.get("domain")), bool(row.get("metric")))
        if len(found.setdefault(key, [])) < per_domain:
            found[key].append(row)
    chosen = []
    for domain in domains:
        failed, solved = found.get((domain, False), []), found.get((domain, True), [])
        fewer = per_domain // 2
        take_failed = min(len(failed), max(fewer, per_domain - len(solved)))
        chosen += failed[:take_failed] + solved[: per_domain - take_failed]
    return chosen


def _compressed_rows(path: Path) -> Iterator[Row]:
    try:
        with gzip.open(path, "rb") as file:
            while line := file.readline(LINE_LIMIT):
                row = _parse(line)
                if row is not None:
                    yield row
    except (OSError, EOFError, zlib.error):  # a file that was cut short
        return
