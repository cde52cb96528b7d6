"""What a run was made of: the lock, by distribution and by config path."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ptrl_plugin_report.plain import Row, table
from ptrl_plugin_report.reading import Run
from ptrl_plugin_report.text import shown

HASH_SHOWN = 12
"""Digits of a SHA-256 that are shown."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """A distribution and what the run took of it.

    Args:
        name: Its name, or `local code`.
        version: Its version.
        digests: Hashes of the packages that its components lie in.
        components: Names of its components.
    """

    name: str
    version: str
    digests: Sequence[str]
    components: Sequence[str]


@dataclass(frozen=True, slots=True)
class Component:
    """A place in the config and the component that stands there."""

    label: str
    name: str
    version: str
    distribution: str


def components(run: Run) -> list[Component]:
    """Returns the locked components by config path."""
    return [
        Component(shown(label, 80), shown(row.get("name", "–"), 80), shown(row.get("version", "–"), 10), _owner(row))
        for label, row in _locked(run)
    ]


def plugins(run: Run) -> list[Plugin]:
    """Returns the distributions that the run's components are of, in the order of the config."""
    found: dict[str, list[Row]] = {}
    for _, row in _locked(run):
        found.setdefault(_owner(row), []).append(row)
    return [
        Plugin(
            name=owner,
            version=shown(rows[0].get("distribution_version") or "–", 30),
            digests=_different(str(row["sha256"])[:HASH_SHOWN] for row in rows if row.get("sha256")),
            components=_different(shown(row.get("name", "–"), 80) for row in rows),
        )
        for owner, rows in found.items()
    ]


def dependencies(run: Run) -> list[tuple[str, str]]:
    """Returns the versions of all that the plugins need."""
    return [(shown(name, 60), shown(version, 30)) for name, version in table(run.lock, "dependencies").items()]


def local_files(run: Run) -> list[tuple[str, str]]:
    """Returns the files of local code, with their hashes."""
    return [(shown(name, 200), shown(digest, 64)) for name, digest in table(run.lock, "local_code").items()]


def _locked(run: Run) -> list[tuple[str, Row]]:
    return [(label, row) for label in table(run.lock, "components") if (row := table(run.lock, "components", label))]


def _owner(row: Row) -> str:
    return shown(row.get("distribution") or "local code", 60)


def _different(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
