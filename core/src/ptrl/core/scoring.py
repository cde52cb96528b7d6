"""Isolated scoring: each reward is called under its label, and a bad one loses its own verdicts only."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import Any, cast

from ptrl.core.contracts import Reward
from ptrl.core.contracts.hooks import Contract, describe
from ptrl.core.plan import DomainPlan, RewardPlan
from ptrl.core.records import Rollout, Score

Verdicts = dict[str, Score]
"""The scores of one rollout, by reward label."""


@dataclass(frozen=True, slots=True)
class _Judge:
    plan: RewardPlan
    reward: Reward
    needs: tuple[str, ...]


class DomainScorer:
    """Scores the rollouts of one domain with its composed rewards, dependants after what they need.

    Args:
        domain: The domain's plan.
        contract: Manager of the session's rewards; this scorer registers the domain's in it.
    """

    def __init__(self, domain: DomainPlan, contract: Contract) -> None:
        self.domain = domain
        self.seconds: dict[str, float] = {}
        self._contract = contract
        judges: dict[str, _Judge] = {}
        for plan in domain.rewards:
            reward = cast(Reward, plan.build())
            contract.add(plan.label, reward)
            needs = tuple(domain.labels_needed(plan.name, reward.needs))
            judges[plan.name] = _Judge(plan, reward, needs)
        order = TopologicalSorter({name: judge.needs for name, judge in judges.items()}).static_order()
        self._judges = [judges[name] for name in order]

    def score(self, groups: Sequence[Sequence[Rollout]]) -> list[list[Verdicts]]:
        """Scores whole groups.

        A rollout that failed before it could be judged gets no verdict.

        Args:
            groups: Rollouts by group.

        Returns:
            For each rollout of each group its scores by label.
        """
        rollouts = [rollout for group in groups for rollout in group]
        verdicts: list[Verdicts] = [{} for _ in rollouts]
        judged = [number for number, rollout in enumerate(rollouts) if rollout.status != "error"]
        bounds = _group_bounds(groups)
        for judge in self._judges:
            batches = [judged]
            if judge.reward.scope == "group":
                batches = [[number for number in judged if low <= number < high] for low, high in bounds]
            for batch in batches:
                if batch:
                    self._judge(judge, batch, rollouts, verdicts)
        return [verdicts[low:high] for low, high in bounds]

    def _judge(self, judge: _Judge, batch: list[int], rollouts: list[Rollout], verdicts: list[Verdicts]) -> None:
        given = [_with_needs(rollouts[number], judge.needs, verdicts[number]) for number in batch]
        begin = time.perf_counter()
        scores = self._call(judge, given)
        spent = time.perf_counter() - begin
        name = judge.plan.name
        self.seconds[name] = self.seconds.get(name, 0.0) + spent
        for number, score in zip(batch, scores, strict=True):
            verdicts[number][name] = score

    def _call(self, judge: _Judge, rollouts: Sequence[Rollout]) -> list[Score]:
        """Calls a reward on a batch; a batch that fails is retried one by one where the scope allows it."""
        result = self._contract.call(judge.plan.label, "score", rollouts=rollouts)
        if result.error is None:
            answers = _as_list(result.value)
            if answers is not None and len(answers) == len(rollouts):
                return [_verdict(answer, judge) for answer in answers]
            reason = _wrong_shape(result.value, len(rollouts))
        else:
            reason = describe(result.error)
        if judge.reward.scope == "rollout" and len(rollouts) > 1:
            return [score for rollout in rollouts for score in self._call(judge, [rollout])]
        return [Score.failure(reason) for _ in rollouts]


def _group_bounds(groups: Sequence[Sequence[Rollout]]) -> list[tuple[int, int]]:
    bounds, start = [], 0
    for group in groups:
        bounds.append((start, start + len(group)))
        start += len(group)
    return bounds


def _with_needs(rollout: Rollout, needs: Sequence[str], verdicts: Mapping[str, Score]) -> Rollout:
    if not needs:
        return rollout
    return replace(rollout, scores={name: verdicts[name] for name in needs if name in verdicts})


def _as_list(value: Any) -> list[Any] | None:
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        return None
    try:
        return list(value)
    except Exception:
        return None


def _wrong_shape(value: Any, expected: int) -> str:
    answers = _as_list(value)
    if answers is None:
        return f"score returned {type(value).__name__}; expected a sequence of {expected} verdicts"
    return f"score returned {len(answers)} verdicts for {expected} rollouts"


def _verdict(answer: Any, judge: _Judge) -> Score:
    """Returns a reward's answer as a Score; what is not a number in the declared range is a failure."""
    if answer is None:
        return Score.abstain("the reward abstained")
    score = answer if isinstance(answer, Score) else _from_number(answer)
    if score.status != "ok":
        return score if score.value is None else replace(score, value=None)
    low, high = judge.reward.range
    value = score.value
    if value is None or not math.isfinite(value):
        return Score.failure(f"{value} is not a finite number")
    if not low <= value <= high:
        return Score.failure(f"{value} is outside the declared range {low} to {high}")
    if judge.plan.table.role != "outcome":
        return score
    metric = value if score.metric is None else score.metric
    if not 0 <= metric <= 1:
        return Score.failure(f"the metric {metric} is outside 0 to 1; return Score(value=..., metric=...)")
    return score if score.metric is not None else replace(score, metric=metric)


def _from_number(answer: Any) -> Score:
    if isinstance(answer, (str, bytes)):
        return Score.failure(f"{type(answer).__name__} is not a verdict; return a float, a Score or None")
    try:
        return Score(value=float(answer))
    except Exception as error:
        return Score.failure(f"{type(answer).__name__} is not a verdict ({describe(error)})")
