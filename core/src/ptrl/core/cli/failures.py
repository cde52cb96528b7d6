"""How commands end when something is wrong: the exit status, and what is printed."""

from __future__ import annotations

import typer

from ptrl.core.errors import ConfigError
from ptrl.core.text import terminal_safe

INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the signal's number."""


def exit_status(error: Exception) -> int:
    """Returns 2 for a config that cannot be used, as for a wrong option, and 1 for everything else."""
    return 2 if isinstance(error, ConfigError) else 1


def show_error(error: Exception) -> None:
    """Prints an error to standard error, without its traceback."""
    typer.secho("error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
    typer.echo(terminal_safe(str(error), lines=True), err=True)


def show_warning(text: str) -> None:
    """Prints a warning to standard error."""
    typer.secho("warning: ", fg=typer.colors.YELLOW, err=True, nl=False)
    typer.echo(terminal_safe(text, lines=True), err=True)


def show_interrupt() -> None:
    """Says that Ctrl-C ended the command."""
    typer.secho("interrupted", fg=typer.colors.YELLOW, err=True)
