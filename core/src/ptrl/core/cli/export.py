"""`ptrl export`: a run's policy as a folder that `from_pretrained` and vLLM load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptrl.core.text import terminal_safe


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.", show_default=False)],
    to: Annotated[Path, typer.Option("--to", help="The folder to make.", show_default=False)],
) -> None:
    """Copy a run's policy to a folder: weights, tokenizer and chat template."""
    import shutil

    from ptrl.core.errors import RunFolderError
    from ptrl.core.files import write_folder
    from ptrl.core.run_folder import RunFolder

    source = RunFolder.open(run).trained_model()
    if to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise RunFolderError(f"{to} is there already — remove it, or name another folder")

    def fill(folder: Path) -> None:
        shutil.copytree(source, folder, dirs_exist_ok=True)

    try:
        write_folder(to.resolve(), fill)
    except OSError as error:
        raise RunFolderError(f"{to} cannot be written: {error.strerror or error}") from None
    typer.echo(f"copied {terminal_safe(str(source))} to {terminal_safe(str(to))}")
