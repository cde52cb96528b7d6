"""`core.jsonl`: metrics, evaluations and rollouts as JSON lines in the run folder."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ptrl.core.contracts.observer import Evaluation, Observer, RunInfo
from ptrl.core.files import finite, write_bytes
from ptrl.core.records import Group
from ptrl.core.rollout_schema import rollout_line
from ptrl.core.run_folder import RunFolder
from ptrl.core.session.session import plain_evaluation
from ptrl.core.settings import RolloutLog

COMPRESSION = 1
"""Gzip level: the quickest, at a third of the size."""

STEP = re.compile(r"(?:step|evaluation)-(\d+)")
IDENTITY = ("step", "split", "decoding")
"""What two lines of one evaluation have in common: a run that was killed before a checkpoint repeats it."""


class JsonLines(Observer):
    """Writes `metrics.jsonl`, `evaluations.jsonl` and `rollouts/` in the run folder.

    After a resume it first removes what the lost steps had written.
    """

    _metrics: IO[str] | None = None
    _newest = ""

    def run_started(self, run: RunInfo) -> None:
        """Opens the files, cut to the steps that are done."""
        self._folder = RunFolder(run.folder)
        self._log = RolloutLog.model_validate(run.settings["run"]["rollouts"])
        for path in (self._folder.metrics, self._folder.evaluations):
            _keep(path, lambda row: row.get("step", 0) <= run.first_step)
        self._folder.rollouts.mkdir(exist_ok=True)
        for path in self._folder.rollouts.glob("*.jsonl.gz"):
            step = STEP.match(path.name)
            if step and int(step[1]) > run.first_step:
                path.unlink()
        self._metrics = self._folder.metrics.open("a", encoding="utf-8")

    def rollouts_scored(self, step: int, groups: Sequence[Group]) -> None:
        """Writes one step's rollouts as one compressed file; those of a second batch are added to it."""
        if not self._log.every or step % self._log.every:
            return
        lines = [
            rollout_line(member, step, tokens=self._log.tokens)
            for group in groups[: self._log.groups]
            for member in group.members
        ]
        self._write_rollouts(f"step-{step:06d}", lines)

    def _write_rollouts(self, name: str, lines: Sequence[str]) -> None:
        data = gzip.compress("".join(f"{line}\n" for line in lines).encode(), COMPRESSION, mtime=0)
        path = self._folder.rollouts / f"{name}.jsonl.gz"
        if name == self._newest and path.exists():
            data = path.read_bytes() + data
        write_bytes(path, data, durable=False)
        self._newest = name

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes one line."""
        if self._metrics is not None:
            _write_line(self._metrics, {"step": step, **metrics})

    def evaluation_finished(self, evaluation: Evaluation) -> None:
        """Writes one line, and the evaluated rollouts as one compressed file."""
        if self._metrics is None:
            return
        row = plain_evaluation(evaluation)
        _keep(self._folder.evaluations, lambda old: any(old.get(key) != row[key] for key in IDENTITY))
        with self._folder.evaluations.open("a", encoding="utf-8") as file:
            _write_line(file, row)
        lines = [rollout_line(one, evaluation.step, tokens=self._log.tokens) for one in evaluation.rollouts]
        self._write_rollouts(f"evaluation-{evaluation.step:06d}-{evaluation.decoding}", lines)

    def close(self) -> None:
        """Closes the file."""
        if self._metrics is not None:
            self._metrics.close()


def _write_line(file: IO[str], data: Mapping[str, object]) -> None:
    file.write(json.dumps(finite(dict(data)), allow_nan=False) + "\n")
    file.flush()


def _keep(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Removes the lines that are not wanted, and a last line that a kill cut short."""
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if (row := _row(line)) is not None and wanted(row)]
    if kept != lines:
        write_bytes(path, b"".join(kept))


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and line.endswith(b"\n") else None
