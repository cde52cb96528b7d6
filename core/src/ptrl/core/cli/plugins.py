"""`ptrl plugins`: what is installed, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import typer

from ptrl.core.cli.options import Json
from ptrl.core.errors import UnknownNameError, did_you_mean
from ptrl.core.registry.entries import COMMANDS, CORE_DISTRIBUTION, Entry, scan
from ptrl.core.text import terminal_safe

KINDS = (
    "environments",
    "rewards",
    "samplers",
    "filters",
    "optimizers",
    "observers",
    "sandboxes",
    "attacks",
    COMMANDS,
)
COLUMNS = ("name", "kind", "distribution", "version", "status")
COLOURS = {"ok": typer.colors.GREEN, "conflict": typer.colors.RED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One name that a distribution claims, as it is printed."""

    name: str
    kind: str
    distribution: str
    version: str
    status: str
    reason: str
    fix: str


def plugins(
    kind: Annotated[str | None, typer.Option(help="Only this kind, such as rewards.", show_default=False)] = None,
    as_json: Json = False,
    load: Annotated[
        bool,
        typer.Option(
            "--load",
            help="Also import each one, in a process of its own; the exit status is then 1 when one fails.",
        ),
    ] = False,
) -> None:
    """List components and commands of installed packages. Nothing is imported, so it is quick and safe."""
    entries = [entry for entry in scan()[1] if kind is None or entry.kind == kind]
    if kind is not None and not entries:
        _check_kind(kind)
    rows = [row_of(entry) for entry in entries]
    if load:
        rows = _with_failures(rows)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        _print(rows, loaded=load)
    if load and any(row.status != "ok" for row in rows):
        raise typer.Exit(1)


def _check_kind(kind: str) -> None:
    known = {*KINDS, *(entry.kind for entry in scan()[1])}
    if kind not in known:
        raise UnknownNameError(f"{kind!r} is not a kind of component; {did_you_mean(kind, known)}")


def row_of(entry: Entry) -> Row:
    """Returns what metadata tells of an entry."""
    row = Row(
        name=entry.name,
        kind=entry.kind,
        distribution=entry.package.name,
        version=entry.package.version,
        status=entry.status,
        reason=entry.reason,
        fix=entry.fix,
    )
    if entry.kind == COMMANDS and entry.status == "ok" and _is_core_command(entry):
        reason = f"ptrl has a command {entry.name!r} of its own, which is the one that runs"
        return replace(row, status="refused", reason=reason, fix="its author must rename the command")
    return row


def _is_core_command(entry: Entry) -> bool:
    from ptrl.core.cli.application import app

    names = {found.name or getattr(found.callback, "__name__", "") for found in app.registered_commands}
    return entry.package.name != CORE_DISTRIBUTION and entry.name in names


def _with_failures(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows after importing each that metadata finds usable."""
    from ptrl.core.cli.probe import probe_all

    usable = [(row.kind, row.name) for row in rows if row.status == "ok"]
    failures = dict(zip(usable, probe_all(usable), strict=True))
    return [_judged(row, failures.get((row.kind, row.name), "")) for row in rows]


def _judged(row: Row, failure: str) -> Row:
    if not failure:
        return row
    reason, _, fix = failure.partition(" — ")
    return replace(row, status="unavailable", reason=reason, fix=fix)


def _print(rows: Sequence[Row], *, loaded: bool) -> None:
    cells = [[terminal_safe(getattr(row, column)) for column in COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *cells, strict=True)]
    typer.secho(_line([column.upper() for column in COLUMNS], widths).rstrip(), bold=True)
    for row, texts in zip(rows, cells, strict=True):
        colour = COLOURS.get(row.status, typer.colors.YELLOW)
        typer.echo(_line(texts[:-1], widths) + typer.style(texts[-1], fg=colour))
        for label, text in (("reason", row.reason), ("fix", row.fix)):
            if text:
                typer.echo(f"    {label}: {terminal_safe(text)}")
    wrong = sum(bool(row.reason) for row in rows)
    distributions = len({row.distribution for row in rows})
    summary = f"{len(rows)} entries of {distributions} distributions; {wrong or 'none'} with a problem"
    hint = "" if loaded else "; `ptrl plugins --load` also imports them"
    typer.echo(f"\n{summary}{hint}")


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    padded = [text.ljust(width) for text, width in zip(texts, widths, strict=False)]
    return "  ".join(padded) + ("  " if len(texts) < len(widths) else "")
