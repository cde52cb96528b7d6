"""`ptrl report`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The run folder.")],
    output: Annotated[Path | None, typer.Option(help="The page; RUN/report.html by default.")] = None,
    rollouts: Annotated[int, typer.Option(min=0, help="Rollouts shown per domain and part of the run.")] = 4,
) -> None:
    """Write a run's report: one self-contained HTML page."""
    from ptrl_plugin_report.page import write_report

    typer.echo(str(write_report(run, output, rollouts)))
