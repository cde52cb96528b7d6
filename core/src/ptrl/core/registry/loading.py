"""Imports just what is named. All but KeyboardInterrupt comes back as data."""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from stevedore.extension import Extension
from stevedore.named import NamedExtensionManager

from ptrl.core.contracts import KINDS, Component
from ptrl.core.contracts.hooks import Contract, describe
from ptrl.core.contracts.reward import RESERVED_REWARD_KEYS
from ptrl.core.errors import (
    ContractError,
    NameConflictError,
    PluginLoadError,
    UnknownNameError,
    did_you_mean,
)
from ptrl.core.registry.entries import COMMANDS, GROUP_PREFIX, Entry, scan

RESERVED_KEYS = frozenset({"use", "version"})


class Extensions(NamedExtensionManager[Any]):
    """Stevedore's manager over our own scan, with every failure kept as data in `failures`.

    Stevedore's own listing loses an entry point's distribution, reads a disk cache even when told not to,
    and lets SystemExit and AssertionError of a plugin end the process; see DESIGN.md.
    """

    def __init__(self, namespace: str, names: Sequence[str]) -> None:
        self.failures: dict[str, BaseException] = {}
        super().__init__(namespace, names, on_missing_entrypoints_callback=None)

    def list_entry_points(self) -> list[importlib.metadata.EntryPoint]:
        """Returns the entry points of one cached scan that may be loaded."""
        kind = self.namespace.removeprefix(GROUP_PREFIX)
        return [entry.point for entry in scan()[1] if entry.kind == kind and entry.status == "ok"]

    def _load_one_plugin(
        self,
        ep: importlib.metadata.EntryPoint,
        invoke_on_load: bool,
        invoke_args: tuple[Any, ...],
        invoke_kwds: dict[str, Any],
    ) -> Extension[Any] | None:
        try:
            return super()._load_one_plugin(ep, invoke_on_load, invoke_args, invoke_kwds)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.failures[ep.name] = error
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A component's class with where it came from; `entry` is None for local code."""

    name: str
    kind: str
    factory: type[Component]
    entry: Entry | None


def find(kind: str, name: str) -> Entry:
    """Returns the entry of a name, without importing anything.

    Raises:
        UnknownNameError: When no installed distribution provides it.
        NameConflictError: When two do.
        PluginLoadError: When metadata tells that it cannot be used.
    """
    entries = scan()[1]
    matches = [entry for entry in entries if entry.name == name and entry.kind != COMMANDS]
    matches.sort(key=lambda entry: entry.status == "refused")  # the owner's claim first
    of_kind = [entry for entry in matches if entry.kind == kind] or matches
    if not of_kind:
        raise UnknownNameError(_unknown(kind, name, entries))
    entry = of_kind[0]
    if entry.status == "conflict":
        raise NameConflictError(f"{entry.reason} — {entry.fix}")
    if entry.kind != kind:
        raise UnknownNameError(f"{name!r} is one of {entry.kind}, not of {kind}")
    if entry.status != "ok":
        raise PluginLoadError(f"{name}: {entry.reason} — {entry.fix}")
    return entry


def _unknown(kind: str, name: str, entries: Sequence[Entry]) -> str:
    known = [entry.name for entry in entries if entry.kind == kind]
    family, dot, _ = name.partition(".")
    hint = did_you_mean(name, known)
    families = {entry.name.partition(".")[0] for entry in entries}
    if not dot:
        hint += "; names have the form family.name"
    elif family not in families:
        hint += f" If a package provides it: pip install ptrl-plugin-{family.replace('_', '-')}"
    what = KINDS[kind].__name__.lower() if kind in KINDS else kind
    return f"no {what} is called {name!r}; {hint}"


def load(kind: str, name: str) -> Loaded:
    """Imports one component and checks its class.

    Raises:
        RegistryError: As `find`; PluginLoadError also when the import fails or the class breaks its contract.
    """
    entry = find(kind, name)
    manager = Extensions(GROUP_PREFIX + kind, [name])
    if name in manager.failures:
        error = manager.failures[name]
        where = f"{entry.package.name} {entry.package.version}"
        raise PluginLoadError(f"{name} ({where}) cannot be imported: {describe(error)}{_fix(error)}") from error
    return Loaded(name=name, kind=kind, factory=check_class(kind, name, manager[name].plugin), entry=entry)


def _fix(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f" — pip install the package that provides {error.name.partition('.')[0]!r}"
    return " — report it to the plugin's author, or uninstall it"


def check_class(kind: str, name: str, found: object) -> type[Component]:
    """Returns the class, or refuses what cannot be a component of the kind.

    Raises:
        PluginLoadError: When it is no class of that kind, misses a hook, or has a reserved option.
    """
    base = KINDS.get(kind)
    if base is None:
        raise PluginLoadError(f"{name}: core loads no {kind}; {did_you_mean(kind, KINDS)}")
    if not (isinstance(found, type) and issubclass(found, base)):
        what = found.__name__ if isinstance(found, type) else type(found).__name__
        raise PluginLoadError(f"{name}: {what} is not a subclass of ptrl.core.{base.__name__}")
    if not (isinstance(found.Config, type) and issubclass(found.Config, BaseModel)):
        raise PluginLoadError(f"{name}: its Config is no pydantic model; write class Config({base.__name__}.Config)")
    reserved = RESERVED_REWARD_KEYS if kind == "rewards" else RESERVED_KEYS
    taken = sorted(reserved & set(found.Config.model_fields))
    if taken:
        raise PluginLoadError(f"{name}: its Config declares {taken[0]!r}, which the config reserves; rename it")
    try:
        Contract(base).check_class(name, found)
    except ContractError as error:
        raise PluginLoadError(str(error)) from error
    return found


def load_command(entry: Entry) -> Any:
    """Imports a command's typer app.

    Raises:
        PluginLoadError: When metadata tells that it cannot be used, or the import fails.
    """
    if entry.status != "ok":
        raise PluginLoadError(f"the command {entry.name!r}: {entry.reason} — {entry.fix}")
    manager = Extensions(GROUP_PREFIX + COMMANDS, [entry.name])
    if entry.name in manager.failures:
        error = manager.failures[entry.name]
        raise PluginLoadError(
            f"the command {entry.name!r} of {entry.package.name} cannot be imported: {describe(error)}{_fix(error)}"
        ) from error
    return manager[entry.name].plugin


def from_function(function: Callable[..., object]) -> type[Component]:
    """Returns a reward class around a plain function `(completion, task) -> float | None`."""
    from ptrl.core.contracts.reward import Reward

    class FunctionReward(Reward):
        """A plain function as a reward."""

        def score(self, rollouts: Any) -> Any:
            return [function(rollout.text, rollout.task) for rollout in rollouts]

    FunctionReward.__doc__ = inspect.getdoc(function) or FunctionReward.__doc__
    FunctionReward.__name__ = getattr(function, "__name__", "FunctionReward")
    return FunctionReward
