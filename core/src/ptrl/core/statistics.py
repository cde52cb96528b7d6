"""Running statistics of reward components: decayed moments that merge in any order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DECAY = 0.98
"""Share of the past that each step keeps: a memory of about fifty steps."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, sum and sum of squares of some values; the count may be a decayed weight."""

    count: float = 0.0
    total: float = 0.0
    square_total: float = 0.0

    @classmethod
    def of(cls, values: Sequence[float]) -> Moments:
        """Returns the moments of values."""
        return cls(float(len(values)), math.fsum(values), math.fsum(value * value for value in values))

    @property
    def mean(self) -> float:
        """Mean, 0 when there is no value."""
        return self.total / self.count if self.count else 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation around the mean, 0 when there is no value.

        Count and sums decay together, so that the start is not biased towards zero (as Adam's correction).
        """
        if not self.count:
            return 0.0
        return math.sqrt(max(0.0, self.square_total / self.count - self.mean**2))

    def plus(self, others: Iterable[Moments], decay: float = 1.0) -> Moments:
        """Returns these moments, decayed, with others added; exact whatever the order of the others."""
        rows = list(others)
        return Moments(
            math.fsum([self.count * decay, *(row.count for row in rows)]),
            math.fsum([self.total * decay, *(row.total for row in rows)]),
            math.fsum([self.square_total * decay, *(row.square_total for row in rows)]),
        )


@dataclass(frozen=True, slots=True)
class Scaling:
    """A frozen, versioned snapshot of the running moments, by domain and component label."""

    version: int = 0
    table: Mapping[tuple[str, str], Moments] = field(default_factory=dict)

    def moments(self, domain: str, label: str) -> Moments:
        """Returns a component's running moments; empty ones when there are none yet."""
        return self.table.get((domain, label), Moments())


class RewardStatistics:
    """Running moments of every component, advanced once a step. A ticket counts once."""

    def __init__(self) -> None:
        self._table: dict[tuple[str, str], Moments] = {}
        self._pending: dict[tuple[str, str], dict[str, Moments]] = {}
        self._version = 0

    def add(self, ticket: str, domain: str, moments: Mapping[str, Moments]) -> None:
        """Notes one ticket's moments; a ticket noted before in this step is not counted again."""
        for label, row in moments.items():
            self._pending.setdefault((domain, label), {}).setdefault(ticket, row)

    def advance(self) -> None:
        """Ends a step: the past decays and what was noted is added."""
        for key, rows in self._pending.items():
            self._table[key] = self._table.get(key, Moments()).plus(rows.values(), DECAY)
        self._pending.clear()
        self._version += 1

    def scaling(self) -> Scaling:
        """Returns a frozen snapshot of what ended steps have told."""
        return Scaling(self._version, dict(self._table))

    def state_dict(self) -> dict[str, Any]:
        """Returns all state as plain data."""
        rows = [[*key, row.count, row.total, row.square_total] for key, row in sorted(self._table.items())]
        pending = [
            [*key, ticket, row.count, row.total, row.square_total]
            for key, noted in sorted(self._pending.items())
            for ticket, row in noted.items()
        ]
        return {"version": self._version, "rows": rows, "pending": pending}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up what `state_dict` returned."""
        self._version = state["version"]
        self._table = {(row[0], row[1]): Moments(*row[2:]) for row in state["rows"]}
        self._pending.clear()
        for domain, label, ticket, *numbers in state.get("pending", ()):
            self.add(ticket, domain, {label: Moments(*numbers)})
