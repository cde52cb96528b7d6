"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a key of the config, such as run.steps=50; values are TOML. May be repeated.",
        show_default=False,
    ),
]

AllowLocalCode = Annotated[
    bool, typer.Option("--allow-local-code", help="Import the `file:` components that the config names.")
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
