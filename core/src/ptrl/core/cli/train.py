"""`ptrl train`: a run from its config to its report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ptrl.core.cli.failures import INTERRUPTED, show_interrupt, show_warning
from ptrl.core.cli.options import AllowLocalCode, Overrides
from ptrl.core.text import terminal_safe

if TYPE_CHECKING:
    from ptrl.core.plan import RunPlan
    from ptrl.core.run_folder import RunFolder

REPORT = "report"
"""The command of ptrl-plugin-report."""


def train(
    target: Annotated[Path, typer.Argument(help="A config file; with --resume also a run folder.", show_default=False)],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the newest run of the config.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Resume although the installed components changed.")] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="The run folder, instead of one named after the run.", show_default=False),
    ] = None,
    overrides: Overrides = None,
    allow_local_code: AllowLocalCode = False,
) -> None:
    """Train a policy as a config says. Ctrl-C ends after the present step, with a checkpoint to resume."""
    from ptrl.core.run import training

    if force and not resume:
        raise typer.BadParameter("it belongs to --resume", param_hint="--force")
    values = tuple(overrides or ())
    if resume:
        plan, run_folder = training.reopen(
            folder or target,
            overrides=values,
            allow_local_code=allow_local_code,
            force=force,
            notify=_notify,
        )
    else:
        plan, run_folder = _begin(target, folder, values, allow_local_code)
    for text in plan.warnings:
        show_warning(text)
    summary = training.train(plan, run_folder, _notify)
    interrupted = summary["status"] == "interrupted"
    _make_report(run_folder)
    _show(summary, run_folder)
    if interrupted:
        show_interrupt()
        typer.echo(f"go on with: ptrl train {terminal_safe(str(run_folder.path))} --resume", err=True)
        raise typer.Exit(INTERRUPTED)


def _begin(
    config: Path, folder: Path | None, overrides: tuple[str, ...], allow_local_code: bool
) -> tuple[RunPlan, RunFolder]:
    """Checks a config before anything is written, and makes the folder of a new run."""
    from ptrl.core.config import load_plan
    from ptrl.core.run import training

    if config.is_dir():
        raise typer.BadParameter(f"{config} is a folder; pass --resume to go on with the run in it")
    plan = load_plan(config, overrides=overrides, allow_local_code=allow_local_code)
    training.check(plan)
    return plan, training.start(plan, folder)


def _notify(text: str) -> None:
    """Prints a line of the run; by `print`, which a live display puts above itself."""
    print(f"note: {terminal_safe(text, lines=True)}", flush=True)


def _make_report(run_folder: RunFolder) -> None:
    """Makes `report.html` by the report plugin's command, where it is installed."""
    from ptrl.core.cli.group import load_plugin_command, plugin_commands
    from ptrl.core.contracts.hooks import describe

    command = plugin_commands().get(REPORT)
    if command is None:
        return
    try:
        load_plugin_command(command.entry).main([str(run_folder.path)], prog_name="ptrl report", standalone_mode=False)
    except (Exception, SystemExit) as error:
        show_warning(f"no report was made: {describe(error)}")
        return
    if not run_folder.report.is_file():
        show_warning(f"no report was made: `ptrl report` wrote no {run_folder.report.name}")


def _show(summary: Mapping[str, Any], run_folder: RunFolder) -> None:
    from rich import get_console

    from ptrl.core.cli.group import plugin_commands
    from ptrl.core.cli.tables import before_and_after

    table = before_and_after(summary)
    if table is not None:
        get_console().print(table)
    path = terminal_safe(str(run_folder.path))
    typer.echo(f"{summary['steps']} steps in {summary['seconds']:.1f} s")
    typer.echo(f"run folder  {path}")
    if run_folder.report.is_file():
        typer.echo(f"report      {terminal_safe(str(run_folder.report))}")
    elif REPORT not in plugin_commands():
        typer.echo(f"report      pip install ptrl-plugin-report && ptrl report {path}")
