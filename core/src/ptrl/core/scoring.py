"""Isolated scoring: each reward is called under its label, and a bad one loses its own verdicts only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set, Sized
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from itertools import islice
from typing import Any, Literal, cast, get_args

from ptrl.core.contracts import Reward
from ptrl.core.contracts.hooks import Contract, describe
from ptrl.core.plan import DomainPlan, RewardPlan
from ptrl.core.records import Rollout, Score, ScoreStatus

Verdicts = dict[str, Score]
"""The scores of one rollout, by reward label."""

LARGEST = 1e100
"""Bound on every value, whatever its range, so that no sum or square of values overflows."""


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
        scores = self._call(judge, given)
        name = judge.plan.name
        for number, score in zip(batch, scores, strict=True):
            verdicts[number][name] = score

    def _call(self, judge: _Judge, rollouts: Sequence[Rollout]) -> list[Score]:
        """Calls a reward on a batch; a batch that fails is retried one by one where the scope allows it."""
        seconds = judge.plan.table.timeout or judge.reward.timeout
        rollouts = tuple(rollouts)  # not a list, which the reward could change
        result = self._contract.call(judge.plan.label, "score", timeout=seconds * len(rollouts), rollouts=rollouts)
        status: Literal["error", "timeout"] = "error"
        if result.error is None:
            answers, reason = _answers(result.value, len(rollouts))
            if answers is not None:
                return [_verdict(answer, judge) for answer in answers]
        else:
            reason = describe(result.error)
            status = "timeout" if isinstance(result.error, TimeoutError) else "error"
        if judge.reward.scope == "rollout" and len(rollouts) > 1:
            return [score for rollout in rollouts for score in self._call(judge, [rollout])]
        return [Score.failure(reason, status) for _ in rollouts]


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


def _answers(value: Any, expected: int) -> tuple[list[Any] | None, str]:
    """Returns a reward's answers, or None and the reason. A generator runs here, so it may fail here."""
    if isinstance(value, (str, bytes, Mapping, Set)) or not hasattr(value, "__iter__"):
        return None, f"score returned {type(value).__name__}; expected a sequence of {expected} verdicts"
    try:
        answers = list(islice(value, expected + 1))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return None, describe(error)
    if len(answers) == expected:
        return answers, ""
    count = len(value) if isinstance(value, Sized) else len(answers)
    return None, f"score returned {count} verdicts for {expected} rollouts"


def _verdict(answer: Any, judge: _Judge) -> Score:
    """Returns a reward's answer as a Score; what is not a number in the declared range is a failure."""
    try:
        return _score_of(answer, judge)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of what the reward returned: its numbers may be objects of any class
        return Score.failure(f"{type(answer).__name__} is not a verdict ({describe(error)})")


def _score_of(answer: Any, judge: _Judge) -> Score:
    if answer is None:
        return Score.abstain("the reward abstained")
    score = answer if isinstance(answer, Score) else Score(value=_number(answer))
    if score.status not in get_args(ScoreStatus):
        return Score.failure(f"{score.status!r} is not a status; expected one of {', '.join(get_args(ScoreStatus))}")
    if score.status != "ok":
        return replace(score, value=None, metric=None)
    if score.value is None or not math.isfinite(value := _number(score.value)):
        return Score.failure(f"{score.value} is not a finite number")
    low, high = judge.reward.range
    if not max(low, -LARGEST) <= value <= min(high, LARGEST):
        return Score.failure(f"{value} is outside the declared range {low} to {high}")
    if judge.plan.table.role != "outcome":
        return replace(score, value=value)
    metric = value if score.metric is None else _number(score.metric)
    if not 0 <= metric <= 1:
        return Score.failure(f"the metric {metric} is outside 0 to 1; return Score(value=..., metric=...)")
    return replace(score, value=value, metric=metric)


def _number(value: Any) -> float:
    """Returns a number of any class as a float; a text is none, whatever it spells."""
    if isinstance(value, (str, bytes)):
        raise TypeError("return a float, a Score or None")
    return float(value)
