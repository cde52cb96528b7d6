"""From a run folder to one self-contained page."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from ptrl.core import RunFolderError
from ptrl.core.files import write_bytes
from ptrl.core.run_folder import RunFolder
from ptrl_plugin_report import components, overview, text
from ptrl_plugin_report.curves import chart_groups
from ptrl_plugin_report.reading import Run, read_run

ROLLOUTS_PER_DOMAIN = 4
"""Rollouts of each domain that are shown from each part of a run."""

CONFIG_LIMIT = 200_000
"""Characters of the config that are shown."""


def write_report(run: Path, output: Path | None = None, rollouts: int = ROLLOUTS_PER_DOMAIN) -> Path:
    """Writes the report of a run, also of one that still goes on or was killed.

    Args:
        run: The run folder.
        output: The page; `report.html` in the run folder by default.
        rollouts: How many rollouts of each domain are shown from each part of the run.

    Returns:
        Where the page is.

    Raises:
        RunFolderError: When it is no run folder, or the page cannot be written.
    """
    page = render(read_run(run, rollouts))
    target = output or RunFolder(run).report
    try:
        write_bytes(target, page.encode())
    except OSError as error:
        raise RunFolderError(
            f"{target} cannot be written: {error.strerror or error} — name another file with --output"
        ) from None
    return target


def render(run: Run) -> str:
    """Returns the page of a run. All text in it is escaped and visible; nothing in it is fetched or run."""
    return (
        _templates()
        .get_template("page.html.j2")
        .render(
            name=text.shown(run.name, 100),
            folder=text.shown(str(run.folder), 300),
            status=overview.status(run),
            facts=overview.facts(run),
            warnings=overview.warnings(run),
            comparison=overview.comparison(run),
            chart_groups=chart_groups(run),
            excerpts=run.excerpts,
            plugins=components.plugins(run),
            components=components.components(run),
            dependencies=components.dependencies(run),
            local_files=components.local_files(run),
            config=text.clip(json.dumps(run.config, indent=2, ensure_ascii=False), CONFIG_LIMIT),
        )
    )


@functools.cache
def _templates() -> Environment:
    """Returns the package's templates, in which everything is escaped and a misspelt name is an error."""
    environment = Environment(
        loader=PackageLoader("ptrl_plugin_report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=text.percent, number=text.number, points=text.points)
    return environment
