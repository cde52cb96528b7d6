"""The numbers of one step, from its scored groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from ptrl.core.records import Group, ScoredRollout


def group_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Returns what a step's groups tell, over all and by domain.

    Keys: `metric`, `reward` (the total), `tokens` (chosen by the policy, mean per rollout), `truncated` and
    `masked` (shares of rollouts), each also as `key/<domain>`; `zero_advantage`, the share of groups whose
    raw metric does not vary; `reward_part/<domain>/<label>`, each reward's mean value.
    """
    if not groups:
        return {}
    found = _numbers([member for group in groups for member in group.members])
    found["zero_advantage"] = fmean(group.zero_variance for group in groups)
    domains = sorted({group.ticket.domain for group in groups})
    for domain in domains:
        own = [group for group in groups if group.ticket.domain == domain]
        members = [member for group in own for member in group.members]
        found.update({f"{key}/{domain}": value for key, value in _numbers(members).items()})
        found[f"zero_advantage/{domain}"] = fmean(group.zero_variance for group in own)
        found.update({f"reward_part/{domain}/{key}": value for key, value in _parts(members).items()})
    return found


def _numbers(members: Sequence[ScoredRollout]) -> dict[str, float]:
    found = {
        "tokens": fmean(sum(member.rollout.loss_mask) for member in members),
        "truncated": fmean(member.rollout.status == "truncated" for member in members),
        "masked": fmean(not member.valid for member in members),
    }
    metrics = [member.metric for member in members if member.metric is not None]
    totals = [member.total for member in members if member.total is not None]
    if metrics:
        found["metric"] = fmean(metrics)
    if totals:
        found["reward"] = fmean(totals)
    return found


def _parts(members: Iterable[ScoredRollout]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for member in members:
        for label, score in member.scores.items():
            if score.value is not None:
                values.setdefault(label, []).append(score.value)
    return {label: fmean(row) for label, row in values.items()}
