"""The application: every command of core, and the group that finds those of plugins."""

from __future__ import annotations

from typing import Annotated

import typer

from ptrl.core.cli.evaluation import evaluate
from ptrl.core.cli.export import export
from ptrl.core.cli.group import CommandGroup
from ptrl.core.cli.plugins import plugins
from ptrl.core.cli.schema import schema
from ptrl.core.cli.train import train
from ptrl.core.cli.validate import validate

app = typer.Typer(
    name="ptrl",
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,  # rich would cost as much as all the rest of --help
    pretty_exceptions_enable=False,  # it prints local variables, secrets among them
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ptrl.core import __version__

        typer.echo(f"ptrl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Post-training reinforcement learning of language models, from one config file and installed plugins."""


app.command()(train)
app.command("eval")(evaluate)
app.command()(plugins)
app.command()(validate)
app.command()(schema)
app.command()(export)
