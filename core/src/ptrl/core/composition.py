"""Composing rewards: pure functions of scores and a frozen scaling snapshot.

Two numbers come out. `total` is the product of the gates times the weighted sum of values, without
statistics: for scoring, evaluation and reports. `training_reward` is what the optimizer sees: every
component is centred on its group, divided by its running deviation in the domain and clipped, so that a
weight bounds a component's influence and no domain's scale drowns another's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ptrl.core.records import RewardRole, Rollout, Score, ScoredRollout
from ptrl.core.statistics import Moments, Scaling

SOLVED = 1.0 - 1e-9
"""A metric from which on a task counts as solved for `only_if_solved`."""

DEVIATION_FLOOR = 0.1
"""Smallest deviation that a component is divided by, as a share of its declared range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """How one reward takes part in the composition.

    Args:
        label: Its label.
        role: `gate` multiplies, the others add.
        weight: Its weight now.
        only_if_solved: Whether it pays only where the metric is 1.
        range: Lowest and highest value.
    """

    label: str
    role: RewardRole
    weight: float
    only_if_solved: bool
    range: tuple[float, float]

    @property
    def unit(self) -> float:
        """Width of the declared range, or 1 where it is unbounded."""
        low, high = self.range
        return high - low if math.isfinite(high - low) and high > low else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """One rollout's values after gates.

    Args:
        values: Gated value of each component that adds and has a verdict.
        metric: The raw metric, or None.
        total: The weighted sum, or None when there is no verdict on the outcome or a gate.
        valid: Whether the rollout can be learnt from.
    """

    values: Mapping[str, float]
    metric: float | None
    total: float | None
    valid: bool


def compose(scores: Mapping[str, Score], components: Sequence[Component]) -> Composed:
    """Composes one rollout's scores without statistics.

    A missing verdict contributes nothing; a missing outcome or gate makes the rollout invalid.
    """
    metric = _metric(scores, components)
    solved = metric is not None and metric >= SOLVED
    gate, valid = 1.0, metric is not None
    for component in components:
        if component.role == "gate":
            value = _value(scores, component.label)
            valid = valid and value is not None
            gate *= value if value is not None else 0.0
    values: dict[str, float] = {}
    for component in components:
        value = _value(scores, component.label)
        if component.role != "gate" and value is not None:
            values[component.label] = value * gate if solved or not component.only_if_solved else 0.0
    added = [c.weight * values[c.label] for c in components if c.label in values]
    return Composed(values=values, metric=metric, total=math.fsum(added) if valid else None, valid=valid)


def _value(scores: Mapping[str, Score], label: str) -> float | None:
    score = scores.get(label)
    return score.value if score is not None and score.status == "ok" else None


def _metric(scores: Mapping[str, Score], components: Sequence[Component]) -> float | None:
    for component in components:
        if component.role == "outcome":
            score = scores.get(component.label)
            return score.metric if score is not None and score.status == "ok" else None
    return None


def compose_group(
    rollouts: Sequence[Rollout],
    verdicts: Sequence[Mapping[str, Score]],
    components: Sequence[Component],
    *,
    domain: str,
    scaling: Scaling,
    clip: float,
    method: Literal["scaled", "sum"] = "scaled",
) -> tuple[tuple[ScoredRollout, ...], dict[str, Moments]]:
    """Composes a whole group.

    Args:
        rollouts: The group's rollouts.
        verdicts: Scores by label, one mapping per rollout.
        components: How each reward takes part.
        domain: The domain's name, under which `scaling` knows its components.
        scaling: Frozen running statistics.
        clip: Bound on a scaled component.
        method: `scaled`, or `sum` for the plain total.

    Returns:
        The scored rollouts, and this group's moments of each component's gated values.
    """
    composed = [compose(scores, components) for scores in verdicts]
    valid = [item for item in composed if item.valid]
    moments = {
        component.label: Moments.of([item.values[component.label] for item in valid if component.label in item.values])
        for component in components
        if component.role != "gate"
    }
    members = []
    for rollout, scores, item in zip(rollouts, verdicts, composed, strict=True):
        reward = 0.0
        if item.valid and method == "sum":
            reward = item.total or 0.0
        elif item.valid:
            reward = _scaled(item, components, moments, domain, scaling, clip)
        members.append(
            ScoredRollout(
                rollout=rollout,
                scores=scores,
                metric=item.metric if item.valid else None,
                total=item.total,
                training_reward=reward,
                valid=item.valid,
            )
        )
    return tuple(members), moments


def _scaled(
    item: Composed,
    components: Sequence[Component],
    moments: Mapping[str, Moments],
    domain: str,
    scaling: Scaling,
    clip: float,
) -> float:
    """Returns the training reward: centred on the group, scaled by the running deviation, clipped, weighted."""
    parts = []
    for component in components:
        value = item.values.get(component.label)
        if value is None or component.weight == 0:
            continue
        running = scaling.moments(domain, component.label)
        group = moments[component.label]
        centre = group.mean if group.count > 1 or running.count == 0 else running.mean
        deviation = running.deviation if running.count > 1 else component.unit / 2
        scaled = (value - centre) / max(deviation, DEVIATION_FLOOR * component.unit)
        parts.append(component.weight * min(clip, max(-clip, scaled)))
    return math.fsum(parts)
