"""The group of commands: core's own, and those of plugins, which are not imported until they are called."""

from __future__ import annotations

import functools
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from ptrl.core.cli.failures import exit_status, show_error, show_interrupt
from ptrl.core.errors import PluginLoadError, PtrlError, did_you_mean
from ptrl.core.registry.entries import COMMANDS, Entry, scan
from ptrl.core.text import terminal_safe


class PluginCommand(TyperCommand):
    """Stands for a plugin's command: its name and its distribution's summary are known without an import.

    Args:
        entry: The command's entry point.
    """

    def __init__(self, entry: Entry) -> None:
        usable = entry.status == "ok"
        summary = entry.package.summary if usable else f"cannot be used: {entry.reason}"
        super().__init__(entry.name, help=terminal_safe(summary), rich_markup_mode=None)
        self.entry = entry

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Imports the command, which then parses its own arguments.

        Raises:
            PluginLoadError: When it cannot be used.
        """
        return load_plugin_command(self.entry).make_context(info_name, args, parent, **extra)


def load_plugin_command(entry: Entry) -> Any:
    """Imports a plugin's typer app and returns it as a command that can be run.

    Raises:
        PluginLoadError: When metadata tells that it cannot be used, its import fails, or it is no typer app.
    """
    from ptrl.core.contracts.hooks import describe
    from ptrl.core.registry.loading import load_command

    if entry.status != "ok":
        raise PluginLoadError(f"the command {entry.name!r}: {entry.reason} — {entry.fix}")
    found = load_command(entry)
    where = f"the command {entry.name!r} of {entry.package.name}"
    if not isinstance(found, typer.Typer):
        raise PluginLoadError(f"{where} is a {type(found).__name__}; its entry point must name a typer.Typer")
    try:
        return typer.main.get_command(found)
    except Exception as error:
        raise PluginLoadError(f"{where} cannot be built: {describe(error)}") from error


@functools.cache
def plugin_commands() -> dict[str, PluginCommand]:
    """Returns the commands of plugins by name, as the process first found them."""
    return {entry.name: PluginCommand(entry) for entry in scan()[1] if entry.kind == COMMANDS}


class CommandGroup(TyperGroup):
    """Core's commands first, then those of plugins; a name of core's cannot be taken over."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns all names, core's in their own order."""
        return [*self.commands, *(name for name in plugin_commands() if name not in self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command by its name, or None."""
        return self.commands.get(cmd_name) or plugin_commands().get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Returns the command that the arguments name; an unknown one is an error with the nearest names."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            ctx.fail(f"no command is called {name!r}; {did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Runs a command; what ptrl raises on purpose is printed without a traceback."""
        try:
            return super().invoke(ctx)
        except PtrlError as error:
            show_error(error)
            raise typer.Exit(exit_status(error)) from error
        except KeyboardInterrupt as error:
            show_interrupt()
            raise typer.Exit(130) from error
