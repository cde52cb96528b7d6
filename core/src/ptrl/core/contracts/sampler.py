"""Samplers decide what is practised next; filters decide which groups are learnt from."""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar

from ptrl.core.contracts.component import Component, hook
from ptrl.core.contracts.environment import Columns
from ptrl.core.records import Group, Outcome, Ticket


class Catalog:
    """The tasks of all domains under one index: domain after domain, in the config's order.

    Args:
        domains: Each domain's columns, by name.
    """

    def __init__(self, domains: Mapping[str, Columns]) -> None:
        self.domains = dict(domains)
        self.names = tuple(self.domains)
        self.sizes = {name: len(columns.keys) for name, columns in self.domains.items()}
        self._ends = list(accumulate(self.sizes.values()))
        self.starts = dict(zip(self.names, [0, *self._ends[:-1]], strict=True))
        parts = [f"{name}:{columns.fingerprint}" for name, columns in self.domains.items()]
        self.fingerprint = hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def __len__(self) -> int:
        """Number of tasks in all domains."""
        return self._ends[-1] if self._ends else 0

    def locate(self, index: int) -> tuple[str, int]:
        """Returns the domain of a catalog index and the task's index within that domain."""
        if not 0 <= index < len(self):
            raise IndexError(f"catalog index {index} is outside 0..{len(self) - 1}")
        name = self.names[bisect_right(self._ends, index)]
        return name, index - self.starts[name]

    def key(self, index: int) -> str:
        """Returns the key of the task at a catalog index."""
        name, local = self.locate(index)
        return self.domains[name].keys[local]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerContext:
    """What the run tells a sampler at each draw.

    Args:
        step: Number of steps finished.
        progress: Share of the run that is done, 0 to 1.
        group_size: The config's rollouts per task.
    """

    step: int
    progress: float
    group_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What to practise next: exactly as many tickets as were asked for."""

    tickets: tuple[Ticket, ...]


class Sampler(Component):
    """Decides what is practised next. One instance per run, never called from two threads."""

    kind: ClassVar[str] = "samplers"

    capabilities: ClassVar[frozenset[str]] = frozenset()
    """What it needs of the optimizer, such as `variable_group`; checked before the run."""

    @hook(required=True)
    def prepare(self, catalog: Catalog, rng: random.Random) -> None:
        """Learns what there is to practise. `rng` is the only source of randomness it may use."""
        raise NotImplementedError

    @hook(required=True)
    def propose(self, n: int, context: SamplerContext) -> Proposal:
        """Returns exactly `n` tickets with ids that are unique in the run."""
        raise NotImplementedError

    @hook()
    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """Learns how tickets ended. Delivery may be late, out of order and repeated."""

    @hook()
    def metrics(self) -> Mapping[str, float]:
        """Returns numbers for the log, such as each domain's share."""
        return {}

    @hook(required=True)
    def state_dict(self) -> Mapping[str, Any]:
        """Returns all state as plain data (numbers, strings, lists, mappings, bytes)."""
        raise NotImplementedError

    @hook(required=True)
    def load_state_dict(self, state: Mapping[str, Any], catalog: Catalog) -> None:
        """Takes up `state`: the next proposals are those that would have followed.

        Raises:
            ValueError: When the state was saved over another catalog (its fingerprint differs).
        """
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Keep:
    """Learn from this group."""


@dataclass(frozen=True, slots=True)
class KeepIfShort:
    """Learn from this group only if the batch would otherwise be short."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Do not learn from this group."""

    reason: str


@dataclass(frozen=True, slots=True)
class Continue:
    """Make more rollouts of the same task before deciding."""

    rollouts: int = field(default=1)


Decision = Keep | KeepIfShort | Drop | Continue


class Filter(Component):
    """Decides which groups are learnt from. The first filter that does not say Keep decides."""

    kind: ClassVar[str] = "filters"

    capabilities: ClassVar[frozenset[str]] = frozenset()
    """What it needs of the optimizer, such as `drop` or `continue`; checked before the run."""

    @hook(required=True)
    def decide(self, group: Group) -> Decision:
        """Returns what to do with a scored group. Judge by the raw metric, not by the shaped reward."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the filters made of a step's groups.

    Args:
        kept: Groups to learn from.
        dropped: Dropped groups with the reason.
        extend: Groups that a filter wants more rollouts of, with how many.
    """

    kept: tuple[Group, ...]
    dropped: tuple[tuple[Group, str], ...]
    extend: tuple[tuple[Group, int], ...] = ()
