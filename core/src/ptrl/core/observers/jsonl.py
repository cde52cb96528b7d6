"""`core.jsonl`: metrics, evaluations and rollouts as JSON lines in the run folder."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from ptrl.core.contracts.observer import Evaluation, Observer, RunInfo
from ptrl.core.files import finite, write_bytes
from ptrl.core.records import Group
from ptrl.core.rollout_schema import rollout_line
from ptrl.core.run_folder import RunFolder
from ptrl.core.session.session import plain_evaluation
from ptrl.core.settings import RolloutLog

COMPRESSION = 1
"""Gzip level: the quickest, at a third of the size."""


class JsonLines(Observer):
    """Writes `metrics.jsonl`, `evaluations.jsonl` and `rollouts/` in the run folder.

    After a resume it first removes what the lost steps had written.
    """

    _metrics: IO[str] | None = None
    _evaluations: IO[str] | None = None

    def run_started(self, run: RunInfo) -> None:
        """Opens the files, cut to the steps that are done."""
        self._folder = RunFolder(run.folder)
        self._log = RolloutLog.model_validate(run.settings["run"]["rollouts"])
        for path in (self._folder.metrics, self._folder.evaluations):
            _keep_until(path, run.first_step)
        self._folder.rollouts.mkdir(exist_ok=True)
        for path in self._folder.rollouts.glob("*.jsonl.gz"):
            if _step_of(path) > run.first_step:
                path.unlink()
        self._metrics = self._folder.metrics.open("a", encoding="utf-8")
        self._evaluations = self._folder.evaluations.open("a", encoding="utf-8")

    def rollouts_scored(self, step: int, groups: Sequence[Group]) -> None:
        """Writes one step's rollouts as one compressed file."""
        if not self._log.every or step % self._log.every:
            return
        lines = [
            rollout_line(member, step, tokens=self._log.tokens)
            for group in groups[: self._log.groups]
            for member in group.members
        ]
        self._write_rollouts(f"step-{step:06d}", lines)

    def _write_rollouts(self, name: str, lines: Sequence[str]) -> None:
        data = ("\n".join(lines) + "\n").encode()
        path = self._folder.rollouts / f"{name}.jsonl.gz"
        path.write_bytes(gzip.compress(data, COMPRESSION, mtime=0))

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes one line."""
        if self._metrics is not None:
            _write_line(self._metrics, {"step": step, **metrics})

    def evaluation_finished(self, evaluation: Evaluation) -> None:
        """Writes one line, and the evaluated rollouts as one compressed file."""
        if self._evaluations is None:
            return
        _write_line(self._evaluations, plain_evaluation(evaluation))
        lines = [rollout_line(one, evaluation.step, tokens=self._log.tokens) for one in evaluation.rollouts]
        self._write_rollouts(f"evaluation-{evaluation.step:06d}-{evaluation.decoding}", lines)

    def close(self) -> None:
        """Closes the files."""
        for file in (self._metrics, self._evaluations):
            if file is not None:
                file.close()


def _write_line(file: IO[str], data: Mapping[str, object]) -> None:
    file.write(json.dumps(finite(dict(data)), allow_nan=False) + "\n")
    file.flush()


def _step_of(path: Path) -> int:
    return int(path.name.split("-")[1].split(".")[0])


def _keep_until(path: Path, step: int) -> None:
    """Removes the lines of later steps, and a last line that a kill cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().splitlines():
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if data.get("step", 0) <= step:
            kept.append(line)
    write_bytes(path, b"".join(line + b"\n" for line in kept))
