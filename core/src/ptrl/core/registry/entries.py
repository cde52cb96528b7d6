"""What is installed, read from metadata alone: nothing here imports a plugin."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from typing import Literal

GROUP_PREFIX = "ptrl."
CORE_DISTRIBUTION = "ptrl-core"
PLUGIN_PREFIX = "ptrl-plugin-"
COMMANDS = "commands"
KIND_NAMES = frozenset(
    {"environments", "rewards", "samplers", "filters", "optimizers", "observers", "sandboxes", "attacks", "models"}
)
"""Entry-point groups without `ptrl.`; `attacks` belong to the sdk, and `models` is reserved."""

BROKEN = "unknown"
"""Kind of the entry that stands for a distribution whose metadata cannot be read."""

EntryStatus = Literal["ok", "unavailable", "conflict", "incompatible", "refused"]


def normalize(name: str) -> str:
    """Returns a distribution's name as the packaging rules compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def family_of(distribution: str) -> str:
    """Returns the family whose names a distribution may claim."""
    name = normalize(distribution)
    if name == CORE_DISTRIBUTION:
        return "core"
    return name.removeprefix(PLUGIN_PREFIX).replace("-", "_")


@dataclass(frozen=True)
class Package:
    """An installed distribution, its metadata read once.

    Args:
        name: Normalized name.
        distribution: The distribution as importlib finds it.
        twice: Version of another copy of it further down the path, or None.
    """

    name: str
    distribution: Distribution
    twice: str | None = None

    @cached_property
    def metadata(self) -> Mapping[str, list[str]]:
        """Its metadata by key; empty where it cannot be read."""
        try:
            found = self.distribution.metadata
            return {key: [str(value) for value in found.get_all(key) or ()] for key in set(found)}
        except (OSError, UnicodeError):
            return {}

    @property
    def version(self) -> str:
        """Its version."""
        return next(iter(self.metadata.get("Version", ())), "unknown")

    @property
    def summary(self) -> str:
        """Its one-line description."""
        return next(iter(self.metadata.get("Summary", ())), "")

    @property
    def requires(self) -> tuple[str, ...]:
        """Its Requires-Dist lines."""
        return tuple(self.metadata.get("Requires-Dist", ()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name that a distribution claims.

    Args:
        name: `family.name`, or the command's name.
        kind: Entry-point group without `ptrl.`.
        point: The entry point.
        package: The distribution that claims it.
        status: Whether it can be used, as far as metadata tells.
        reason: What is wrong, in words; empty when nothing is.
        fix: What to do about it.
    """

    name: str
    kind: str
    point: EntryPoint
    package: Package
    status: EntryStatus = "ok"
    reason: str = ""
    fix: str = ""


def scan() -> tuple[Mapping[str, Package], tuple[Entry, ...]]:
    """Returns installed packages by normalized name, and all entries of the `ptrl.*` groups, sorted."""
    return _scan(os.environ.get("PTRL_PLUGINS"))


def forget() -> None:
    """Drops what `scan` remembers, so that newly installed packages are seen."""
    _scan.cache_clear()
    _module_exists.cache_clear()


@lru_cache(maxsize=4)
def _scan(restriction: str | None) -> tuple[Mapping[str, Package], tuple[Entry, ...]]:
    packages = _packages()
    allowed = _allowed(restriction)
    entries = [
        _judge(entry, packages)
        for package in packages.values()
        if allowed is None or package.name in allowed
        for entry in _entries_of(package)
    ]
    return packages, tuple(sorted(_mark_conflicts(entries), key=lambda entry: (entry.kind, entry.name)))


def _allowed(restriction: str | None) -> set[str] | None:
    """Returns the distributions that PTRL_PLUGINS admits beside core; None for all."""
    if restriction is None:
        return None
    names = [name for name in re.split(r"[\s,]+", restriction) if name]
    return {CORE_DISTRIBUTION} | {normalize(name) for name in names}


def _packages() -> dict[str, Package]:
    """Returns the distribution that an import would take for each name, noting other copies of it."""
    found: dict[str, Package] = {}
    for distribution in distributions():
        name = _name_of(distribution)
        first = found.get(name)
        if not name:
            continue
        if first is None:
            found[name] = Package(name, distribution)
        elif _claims_names(distribution) and not _same_place(first.distribution, distribution):
            found[name] = replace(first, twice=Package(name, distribution).version)
    return found


def _claims_names(distribution: Distribution) -> bool:
    """Tells whether a distribution may have entry points of ours; a file that cannot be read may."""
    try:
        return GROUP_PREFIX in str(distribution.read_text("entry_points.txt"))
    except (OSError, UnicodeError):
        return True


def _name_of(distribution: Distribution) -> str:
    """Returns a distribution's name, from its folder's where that tells: reading all metadata is slow."""
    path = getattr(distribution, "_path", None)
    stem = Path(str(path)).name if path is not None else ""
    match = re.match(r"(?P<name>.+?)-\d[^-]*\.dist-info$", stem)
    if match:
        return normalize(match["name"])
    try:
        return normalize(distribution.metadata["Name"] or "")
    except (OSError, UnicodeError):
        return ""


def _same_place(one: Distribution, other: Distribution) -> bool:
    """Tells whether two finds are one folder, seen through two entries of the path."""
    first, second = getattr(one, "_path", one), getattr(other, "_path", other)
    try:
        return Path(str(first)).resolve() == Path(str(second)).resolve()
    except OSError:
        return str(first) == str(second)


def _entries_of(package: Package) -> Iterator[Entry]:
    """Yields what a distribution claims; metadata that cannot be read is one entry that says so."""
    if not _claims_names(package.distribution):
        return
    try:
        points = list(package.distribution.entry_points)
    except Exception as error:
        broken = Entry(name=package.name, kind=BROKEN, point=EntryPoint(package.name, "", ""), package=package)
        reason = f"its entry_points.txt cannot be read ({type(error).__name__}: {error})"
        yield _mark(broken, "unavailable", reason, f"pip install --force-reinstall {package.name}")
        return
    for point in points:
        if point.group.startswith(GROUP_PREFIX):
            kind = point.group.removeprefix(GROUP_PREFIX)
            yield Entry(name=point.name, kind=kind, point=point, package=package)


def _judge(entry: Entry, packages: Mapping[str, Package]) -> Entry:
    """Returns the entry with what metadata tells of it."""
    if entry.kind == BROKEN:
        return entry
    for check in (_check_kind, _check_family, _check_requirements, _check_module, _check_twice):
        found = check(entry, packages)
        if found is not None:
            return found
    return entry


def _mark(entry: Entry, status: EntryStatus, reason: str, fix: str) -> Entry:
    return replace(entry, status=status, reason=reason, fix=fix)


def _check_kind(entry: Entry, packages: Mapping[str, Package]) -> Entry | None:
    if entry.kind in KIND_NAMES or entry.kind == COMMANDS:
        return None
    from ptrl.core.errors import did_you_mean

    reason = f"there is no kind {entry.kind!r}; {did_you_mean(entry.kind, {*KIND_NAMES, COMMANDS})}"
    return _mark(entry, "refused", reason, "its author must rename the entry-point group")


def _check_family(entry: Entry, packages: Mapping[str, Package]) -> Entry | None:
    family, dot, rest = entry.name.partition(".")
    own = family_of(entry.package.name)
    if entry.kind == COMMANDS or (family == own and dot and rest):
        return None
    reason = f"the name is not in the family of {entry.package.name}, which is {own!r}"
    return _mark(entry, "refused", reason, f"its author must rename it to {own}.{rest or entry.name}")


def _check_requirements(entry: Entry, packages: Mapping[str, Package]) -> Entry | None:
    """Holds the ptrl distributions that it needs against those installed."""
    from packaging.requirements import InvalidRequirement, Requirement  # not needed where nothing is required

    for line in entry.package.requires:
        if not line.lower().lstrip().startswith("ptrl"):
            continue
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            reason = f"its requirement {line!r} is not well-formed"
            return _mark(entry, "incompatible", reason, "its author must correct it")
        name = normalize(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        installed = packages.get(name)
        if installed is None:
            reason = f"{entry.package.name} needs {name}, which is not installed"
            return _mark(entry, "incompatible", reason, f"pip install '{requirement}'")
        if not requirement.specifier.contains(installed.version, prereleases=True):
            reason = f"{entry.package.name} needs {requirement}; {installed.version} is installed"
            return _mark(entry, "incompatible", reason, f"pip install --upgrade '{requirement}'")
    return None


def _check_module(entry: Entry, packages: Mapping[str, Package]) -> Entry | None:
    """Looks for the module's file without importing any package on the way."""
    if not entry.point.pattern.match(entry.point.value):
        reason = f"its entry point {entry.point.value!r} is not of the form module:Class"
        return _mark(entry, "unavailable", reason, "its author must correct it")
    if _module_exists(entry.point.module):
        return None
    reason = f"its module {entry.point.module} is not there"
    fix = f"pip install --force-reinstall {entry.package.name}"
    return _mark(entry, "unavailable", reason, fix)


@lru_cache(maxsize=1024)
def _module_exists(module: str) -> bool:
    first, *rest = module.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    for part in rest:
        below = [folder / part for folder in folders]
        if any(path.with_suffix(".py").is_file() or any(path.parent.glob(f"{part}.*.so")) for path in below):
            folders = []
            continue
        folders = [path for path in below if path.is_dir()]
        if not folders:
            return False
    return True


def _check_twice(entry: Entry, packages: Mapping[str, Package]) -> Entry | None:
    package = entry.package
    if package.twice is None:
        return None
    reason = f"{package.name} is installed twice: {package.version} is used, {package.twice} is hidden"
    fix = f"pip uninstall {package.name} until none is left, then install it once"
    return _mark(entry, "ok", reason, fix)


def _mark_conflicts(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Marks names that are claimed twice, over all kinds; commands have names of their own.

    A claim that is refused takes no name from its owner.
    """
    claims: dict[tuple[bool, str], list[Entry]] = {}
    for entry in entries:
        if entry.status == "refused":
            yield entry
        else:
            claims.setdefault((entry.kind == COMMANDS, entry.name), []).append(entry)
    for (_, name), claimants in claims.items():
        if len(claimants) == 1:
            yield claimants[0]
            continue
        owners = " and ".join(sorted(f"{claim.package.name} ({claim.kind})" for claim in claimants))
        fix = f"its author must rename {name}"
        if len({claim.package.name for claim in claimants}) > 1:
            fix = f"pip uninstall {claimants[-1].package.name}, or ask its author to rename {name}"
        for claim in claimants:
            yield _mark(claim, "conflict", f"{name} is claimed by {owners}", fix)
