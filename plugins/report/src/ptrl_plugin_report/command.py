"""`ptrl report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option(help="Where the page goes; RUN/report.html by default.", show_default=False)
    ] = None,
    rollouts: Annotated[int, typer.Option(min=0, help="Rollouts shown per domain and part of the run.")] = 4,
) -> None:
    """Write a run's report: one self-contained HTML page."""
    from ptrl.core.text import terminal_safe
    from ptrl_plugin_report.page import write_report

    typer.echo(terminal_safe(str(write_report(run, output, rollouts))))
