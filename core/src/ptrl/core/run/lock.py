"""The lock: what was installed when a run began. Resume refuses another one unless told to."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from ptrl.core.plan import ComponentPlan, RunPlan
from ptrl.core.registry import Package, normalize, scan

LOCK_FORMAT = 1


def build_lock(plan: RunPlan) -> dict[str, Any]:
    """Returns the lock of a plan.

    `components`: by label, the name, version, distribution and SHA-256 of the package's files: what decides
    learning results. `dependencies`: versions of the plugins' dependency closure. `local_code`: hashes of
    files that the config names, which are relative to `folder`.
    """
    packages = scan()[0]
    hash_once = functools.cache(package_hash)
    components = {component.label: _component(component, hash_once) for component in plan.components()}
    owners = {row["distribution"] for row in components.values() if row["distribution"]}
    return {
        "format": LOCK_FORMAT,
        "components": components,
        "dependencies": _closure({*owners, "ptrl-core"}, packages),
        "local_code": dict(plan.local_code),
        "folder": plan.folder,
    }


def _component(component: ComponentPlan, hash_of: Callable[[str], str]) -> dict[str, Any]:
    entry = component.loaded.entry
    row: dict[str, Any] = {
        "name": component.loaded.name,
        "version": component.loaded.factory.version,
        "distribution": None,
    }
    if entry is not None:
        row["distribution"] = entry.package.name
        row["distribution_version"] = entry.package.version
        row["sha256"] = hash_of(entry.point.module)
    return row


def package_hash(module: str) -> str:
    """Returns the SHA-256 over the names and contents of a package's files.

    The package is the module's own: the first part of its name that is not a namespace. An editable
    install's RECORD lists no source, so the files are those that an import would find.
    """
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = importlib.util.find_spec(".".join(parts[:count]))
        if spec is not None and spec.origin not in (None, "namespace"):
            origin = Path(str(spec.origin))
            return _hash_files(origin.parent if spec.submodule_search_locations else origin)
    return ""


def _hash_files(path: Path) -> str:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    base = path.parent if path.is_file() else path
    digest = hashlib.sha256()
    for file in files:
        if "__pycache__" in file.parts or file.suffix == ".pyc":
            continue
        digest.update(file.relative_to(base).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _closure(names: set[str], packages: Mapping[str, Package]) -> dict[str, str]:
    """Returns the installed versions of distributions and of all that they require."""
    found: dict[str, str] = {}
    waiting = sorted(names)
    while waiting:
        name = waiting.pop()
        package = packages.get(name)
        if package is None or name in found:
            continue
        found[name] = package.version
        waiting.extend(normalize(needed) for line in package.requires if (needed := _needed(line)))
    return dict(sorted(found.items()))


def _needed(line: str) -> str | None:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        match = re.match(r"[A-Za-z0-9._-]+", line)
        return match[0] if match else None
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return None
    return requirement.name


def compare_locks(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Returns what changed between two locks, in words: what refuses a resume, and what only warns."""
    refusals = _changes("component", saved.get("components", {}), current["components"])
    refusals += _changes("local file", saved.get("local_code", {}), current["local_code"])
    warnings = _changes("dependency", saved.get("dependencies", {}), current["dependencies"])
    return refusals, warnings


def _changes(what: str, saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    changes = []
    for name in sorted({*saved, *current}):
        if name not in current:
            changes.append(f"{what} {name} is gone")
        elif name not in saved:
            changes.append(f"{what} {name} is new")
        elif saved[name] != current[name]:
            changes.append(f"{what} {name} changed: {_difference(saved[name], current[name])}")
    return changes


def _difference(saved: Any, current: Any) -> str:
    if not (isinstance(saved, dict) and isinstance(current, dict)):
        return f"{str(saved)[:16]} -> {str(current)[:16]}"
    keys = sorted({*saved, *current})
    rows = [(key, saved.get(key), current.get(key)) for key in keys if saved.get(key) != current.get(key)]
    return ", ".join(f"{key} {str(old)[:16]} -> {str(new)[:16]}" for key, old, new in rows)
