"""`ptrl schema`: one JSON Schema for all that is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ptrl.core.cli.failures import show_warning
from ptrl.core.text import terminal_safe


def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it to this file.", show_default=False)
    ] = None,
) -> None:
    """Print the JSON Schema of a config, with the options of every installed component, for editors."""
    from ptrl.core.config import build_schema
    from ptrl.core.errors import PtrlError
    from ptrl.core.files import write_json

    found, skipped = build_schema()
    for text in skipped:
        show_warning(f"left out: {text}")
    if output is None:
        typer.echo(json.dumps(found, indent=2))
        return
    try:
        write_json(output, found)
    except OSError as error:
        raise PtrlError(f"{output} cannot be written: {error.strerror}") from None
    typer.echo(f"wrote {terminal_safe(str(output))}")
