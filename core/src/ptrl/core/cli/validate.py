"""`ptrl validate`: a config's problems, all at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ptrl.core.cli.failures import show_warning
from ptrl.core.cli.options import AllowLocalCode, Overrides
from ptrl.core.text import terminal_safe


def validate(
    config: Annotated[Path, typer.Argument(help="A config file, or a run folder.", show_default=False)],
    overrides: Overrides = None,
    allow_local_code: AllowLocalCode = False,
) -> None:
    """Check a config: keys, values, names, what the parts ask of each other. Trains nothing."""
    from ptrl.core.config import load_plan
    from ptrl.core.run import training
    from ptrl.core.run_folder import RunFolder

    file = RunFolder.open(config).config if config.is_dir() else config
    plan = load_plan(file, overrides=overrides or (), allow_local_code=allow_local_code)
    training.check(plan)
    for text in plan.warnings:
        show_warning(text)
    rewards = sum(len(domain.rewards) for domain in plan.domains)
    parts = f"{_count(len(plan.domains), 'domain')}, {_count(rewards, 'reward')}, {plan.optimizer.loaded.name}"
    verdict = "ok" if not plan.warnings else f"ok, with {_count(len(plan.warnings), 'warning')}"
    typer.echo(f"{terminal_safe(str(config))}: {verdict} ({terminal_safe(parts)})")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
