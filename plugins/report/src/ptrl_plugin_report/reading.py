"""What a run folder holds, as far as it is there: a run that still goes on, or was killed, gives what it has.

Files are read as untrusted: what has not the expected form counts as missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ptrl.core import RunFolderError
from ptrl.core.run_folder import RunFolder
from ptrl_plugin_report.plain import Row, as_number, parse, table
from ptrl_plugin_report.rollouts import Excerpt, read_excerpts


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run's files as plain data.

    Args:
        name: Its name.
        folder: Where it is.
        config: The resolved config.
        lock: What was installed.
        summary: What it reached; empty while it goes on, also after a resume.
        metrics: One row per step, each with a `step`.
        evaluations: One row per evaluation, each with a `step`.
        excerpts: A few rollouts of some parts of the run.
    """

    name: str
    folder: Path
    config: Row
    lock: Row = field(default_factory=dict)
    summary: Row = field(default_factory=dict)
    metrics: Sequence[Row] = ()
    evaluations: Sequence[Row] = ()
    excerpts: Sequence[Excerpt] = ()

    @property
    def domains(self) -> list[str]:
        """Names of the domains, in the config's order."""
        return list(table(self.config, "domains"))

    @property
    def step(self) -> int:
        """Number of steps done."""
        return max((int(row["step"]) for row in (*self.metrics[-1:], *self.evaluations[-1:])), default=0)

    @property
    def makes_rollouts(self) -> bool:
        """Whether steps make rollouts; those of a supervised stage do not."""
        return not self.metrics or any("tokens" in row for row in self.metrics)


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
    if not (isinstance(config, dict) and isinstance(config.get("run"), dict)):
        raise RunFolderError(f"{folder.config} is not the config of a run; pass the folder that `ptrl train` named")
    run = Run(
        name=str(config["run"].get("name", path.name)),
        folder=path,
        config=config,
        lock=_optional(folder, folder.lock),
        metrics=list(_rows(folder.metrics)),
        evaluations=list(_rows(folder.evaluations)),
        excerpts=read_excerpts(folder.rollouts, table(config, "domains"), per_domain),
        summary=_optional(folder, folder.summary),
    )
    # a run that was interrupted and goes on has the summary of its first part
    done = as_number(run.summary.get("steps")) or 0
    return run if done >= run.step else replace(run, summary={})


def _optional(folder: RunFolder, path: Path) -> Row:
    try:
        found = folder.read_json(path)
    except RunFolderError:
        return {}
    return found if isinstance(found, dict) else {}


def _rows(path: Path) -> Iterator[Row]:
    """Yields a file's whole lines; a last line that was cut short is left out."""
    try:
        with path.open("rb") as file:
            for line in file:
                row = parse(line)
                if row is not None and type(row.get("step")) is int and 0 <= row["step"] < 2**53:
                    yield row
    except OSError:
        return
